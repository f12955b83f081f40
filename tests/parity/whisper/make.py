"""Makes the fixtures of Whisper: what mlx-whisper computes with tiny seeded models.

Each fixture is a folder NAME in fixtures-whisper with
  recipe.json             the model: config, seed, one line per tensor, digest of the weights, and what made it. The
                          weights themselves are made from this where they are needed (exact/seeded.py, src/seeded.rs)
  reference.safetensors   mel [frames, n_mels]; tokens [21] of one sequence, the first PROMPT of which go in together, and
                          branch.tokens [STEPS, BRANCHES] of a beam: its rows begin with the prompt, and before each step
                          row k goes on from row branch.sources[step, k].
                          For `native` (computed in the type of the weights) and `f32` (in float32, from the same weights):
                          NAME.encoded, NAME.logits [21, vocabulary], NAME.branch.logits [STEPS, BRANCHES, vocabulary],
                          NAME.scores [alignment heads, 21, n_audio_ctx] of the whole sequence read at once, and
                          NAME.whole.logits of that
"""

import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

# One thread adds in one order: the same bytes each time.
os.environ["OMP_NUM_THREADS"] = "1"
ROOM = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOM.parent / "exact"))

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from whisper_recipes import RECIPES, SIZES, WhisperRecipe, law  # noqa: E402
from reference import VERSION, empty, load  # noqa: E402
from seeded import make_tensor, words  # noqa: E402
from write import write_model  # noqa: E402

TYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32"}
PROMPT, STEPS, BRANCHES = 4, 17, 5


def describe(recipe: WhisperRecipe) -> tuple[dict, list]:
    """The config, and for each tensor [name, type, shape] or [name, type, shape, middle, step]."""
    config = SIZES | recipe.config
    if recipe.quantization:
        config["quantization"] = recipe.quantization
    model = empty(config, getattr(mx, recipe.dtype))
    modules = dict(model.named_modules())
    tensors = []
    for name, array in sorted(tree_flatten(model.parameters())):
        if name == "alignment_heads":
            continue
        is_quantized = hasattr(modules.get(name.rpartition(".")[0]), "bits")
        drawn = law(name, array.shape, recipe.quantization if is_quantized else None)
        tensors.append([name, TYPES[array.dtype], list(array.shape), *(drawn or ())])
    return config, tensors


def heads_of(config: dict) -> list:
    if "alignment_heads" in config:
        return config["alignment_heads"]
    layers = range(config["n_text_layer"] // 2, config["n_text_layer"])
    return [[layer, head] for layer in layers for head in range(config["n_text_head"])]


def run(folder: Path, dtype: mx.Dtype, config: dict, given: dict) -> dict:
    """What the reference computes in this type."""
    model = load(folder, dtype)
    # float32 holds every value of the other types.
    read = lambda array: np.array(array.astype(mx.float32))
    encoded = model.encoder(mx.array(given["mel"]).astype(dtype)[None])
    tokens = mx.array(given["tokens"])[None]
    logits, cache, _ = model.decoder(tokens[:, :PROMPT], encoded)
    rows = [read(logits[0])]
    for step in range(STEPS):
        logits, cache, _ = model.decoder(tokens[:, PROMPT + step : PROMPT + step + 1], encoded, cache)
        rows.append(read(logits[0]))
    whole, _, scores = model.decoder(tokens, encoded)
    shared = mx.repeat(encoded, BRANCHES, axis=0)
    _, cache, _ = model.decoder(mx.repeat(tokens[:, :PROMPT], BRANCHES, axis=0), shared)
    branches = []
    for step in range(STEPS):
        sources = mx.array(given["branch.sources"][step])
        cache = tree_map(lambda array: array[sources], cache)
        logits, cache, _ = model.decoder(mx.array(given["branch.tokens"][step])[:, None], shared, cache)
        branches.append(read(logits[:, 0]))
    return {
        "encoded": read(encoded[0]),
        "logits": np.concatenate(rows),
        "branch.logits": np.stack(branches),
        "scores": np.stack([read(scores[layer][0, head]) for layer, head in heads_of(config)]),
        "whole.logits": read(whole[0]),
    }


def make_fixture(recipe: WhisperRecipe, folder: Path) -> None:
    config, tensors = describe(recipe)
    seed = 1000 * zlib.crc32(recipe.name.encode())
    drawn = lambda index, shape: (words(seed, 10**6 + index, int(np.prod(shape))) % np.uint64(config["n_vocab"])).reshape(shape)
    given = {
        "mel": make_tensor(seed, 2 * 10**6, "F32", [2 * config["n_audio_ctx"], config["n_mels"]], 0.2, 2.0 / 65536),
        "tokens": drawn(0, (PROMPT + STEPS,)).astype(np.uint32),
        "branch.tokens": drawn(1, (STEPS, BRANCHES)).astype(np.uint32),
        "branch.sources": (drawn(2, (STEPS, BRANCHES)) % np.uint64(BRANCHES)).astype(np.uint32),
    }
    with tempfile.TemporaryDirectory() as scratch:
        weights = write_model(config, tensors, seed, Path(scratch))
        results = dict(given)
        for name, dtype in (("native", getattr(mx, recipe.dtype)), ("f32", mx.float32)):
            computed = run(Path(scratch), dtype, config, given)
            results |= {f"{name}.{key}": value for key, value in computed.items()}
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "recipe": recipe.to_json(),
        "seed": seed,
        "weights_sha256": weights,
        "mlx_whisper": VERSION,
        "mlx": mx.__version__,
        "device": str(mx.default_device()),
        "config": config,
    }
    text = json.dumps(head, indent=2).removesuffix("\n}")
    lines = ",\n".join("    " + json.dumps(item, separators=(",", ":")) for item in tensors)
    (folder / "recipe.json").write_text(f'{text},\n  "tensors": [\n{lines}\n  ]\n}}\n')
    save_file({name: np.ascontiguousarray(array) for name, array in results.items()}, folder / "reference.safetensors")
    spread = {key: float(results[f"native.{key}"].std()) for key in ("encoded", "logits", "scores")}
    print(f"{recipe.name}: deviations {spread}", flush=True)


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    for recipe in RECIPES:
        if len(sys.argv) == 1 or recipe.name in sys.argv[1:]:
            make_fixture(recipe, ROOM.parent / "fixtures-whisper" / recipe.name)
