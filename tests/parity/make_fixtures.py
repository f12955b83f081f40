"""Makes the parity fixtures: tiny seeded models in MLX layout and what mlx-lm, the reference, computes with them.

Each fixture is a folder FAMILY/NAME with
  config.json            as mlx-lm reads it
  model.safetensors      the weights
  reference.safetensors  what the reference computed:
    prompt   i32 [P]         the prompt's tokens
    chunks   i32 [C]         how the prompt was cut into prefill steps, in tokens
    tokens   i32 [S]         the S tokens decoded greedily after the prompt
    rows     i32 [R]         positions whose logits are kept: row r was computed from tokens 0 ..= rows[r]
    logits   f32 [R, vocab]  those logits, all computation in f32 whatever the weights are stored in
    kv16.logits              the same rows with keys and values rounded to f16 before they are kept, as Linnet's cpu
                             back end keeps them: what is left of a difference is no rounding of the cache
    native.tokens, native.logits  tokens and logits with all computation in the model's own type, for back ends that
                             compute in it (f16 and bf16 models only)
  recipe.json            what made it: recipe, seed, versions, the smallest greedy margin

Greedy tokens are a fair test only where no two candidates are nearly equal, so seeds are tried in turn until every
one of the S steps has a margin of at least MARGIN and the continuation is not a short loop.
"""

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

# One thread adds in one order: the same bytes each time.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import safetensors
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import _get_classes, load_model

from recipes import FAMILIES, Recipe

CHUNKS = [17, 1, 19]
STEPS = 64
# Positions after the prompt whose logits are kept, beside the end of each prefill chunk.
KEPT_STEPS = [1, 2, 27, 40, 63]
# (best - second) / max |logit|; four times the tolerance of the exact path.
MARGIN = 4e-3
DISTINCT_TOKENS = 12
SAFETENSORS_TYPES = {
    mx.float32: "float32",
    mx.float16: "float16",
    mx.bfloat16: "bfloat16",
    mx.uint32: "uint32",
    mx.int32: "int32",
}


def save(path: Path, arrays: dict, metadata: dict) -> None:
    """Writes arrays through the safetensors library, which orders them the same way each time."""
    kept_alive, tensors = [], {}
    for name, array in arrays.items():
        mx.eval(array)
        # numpy has no bfloat16: its bits pass as integers.
        raw = np.ascontiguousarray(np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array))
        kept_alive.append(raw)
        tensors[name] = safetensors.TensorSpec(
            dtype=SAFETENSORS_TYPES[array.dtype],
            shape=list(array.shape),
            data_ptr=raw.ctypes.data,
            data_len=raw.nbytes,
        )
    path.write_bytes(safetensors.serialize(tensors, metadata))


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def seeded_parameters(model: nn.Module, generator: np.random.Generator) -> list:
    """Draws every parameter so that activations keep their size from layer to layer and logits spread widely."""
    parameters = []
    for name, array in sorted(tree_flatten(model.parameters())):
        noise = generator.standard_normal(array.shape, dtype=np.float32)
        if "norm" in name:
            values = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            values = 0.3 * noise
        elif "embed_tokens" in name:
            values = noise
        else:
            # Queries and keys stay smaller: scores that are too sharp magnify every rounding.
            gain = 1.0 if "q_proj" in name or "k_proj" in name else 1.5
            values = gain * noise / np.sqrt(array.shape[-1])
        parameters.append((name, mx.array(values)))
    return parameters


def make_model(recipe: Recipe, base: dict, seed: int, folder: Path) -> dict:
    """Writes config.json and model.safetensors; returns the config."""
    config = base | recipe.config
    model_class, args_class = _get_classes(config=config)
    model = model_class(args_class.from_dict(config))
    generator = np.random.Generator(np.random.Philox(seed))
    model.load_weights(seeded_parameters(model, generator))
    model.set_dtype(getattr(mx, recipe.dtype))
    if recipe.quantization:

        def choose(path: str, module: nn.Module):
            return recipe.layer_quantization.get(path, hasattr(module, "to_quantized"))

        nn.quantize(model, **recipe.quantization, class_predicate=choose)
        config["quantization"] = recipe.quantization | recipe.layer_quantization
        config["quantization_config"] = config["quantization"]
    config["torch_dtype"] = recipe.dtype
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    save(folder / "model.safetensors", dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return config


class RoundedKVCache(KVCache):
    """Keeps what f16 keeps of keys and values."""

    def update_and_fetch(self, keys, values):
        return super().update_and_fetch(*map(through_f16, (keys, values)))


class RoundedRotatingKVCache(RotatingKVCache):
    """Likewise, for layers with a window."""

    def update_and_fetch(self, keys, values):
        return super().update_and_fetch(*map(through_f16, (keys, values)))


def through_f16(array: mx.array) -> mx.array:
    return array.astype(mx.float16).astype(array.dtype)


def rounded(cache: KVCache | RotatingKVCache) -> KVCache | RotatingKVCache:
    return RoundedRotatingKVCache(cache.max_size) if isinstance(cache, RotatingKVCache) else RoundedKVCache()


def decode(model: nn.Module, prompt: list, cache: list, least_margin: float = 0.0) -> tuple:
    """Prefills in chunks, then decodes greedily. Returns tokens, kept logits and the smallest margin.

    Stops early, with what there is, once the margin is below `least_margin`.
    """
    kept, tokens, margin = [], [], float("inf")
    start = 0
    for length in CHUNKS:
        logits = model(mx.array([prompt[start : start + length]]), cache=cache)[0, -1]
        start += length
        kept.append(logits)
    for step in range(1, STEPS + 1):
        values = np.array(logits.astype(mx.float32))
        order = np.argsort(-values, kind="stable")
        margin = min(margin, float((values[order[0]] - values[order[1]]) / np.abs(values).max()))
        tokens.append(int(order[0]))
        if step == STEPS or margin < least_margin:
            break
        logits = model(mx.array([[tokens[-1]]]), cache=cache)[0, -1]
        if step in KEPT_STEPS:
            kept.append(logits)
    return tokens, mx.stack(kept).astype(mx.float32), margin


def make_fixture(recipe: Recipe, base: dict, folder: Path, first_seed: int) -> None:
    """Makes one fixture, trying seeds from `first_seed` on until its greedy tokens are a fair test."""
    for seed in range(first_seed, first_seed + 1000):
        config = make_model(recipe, base, seed, folder)
        generator = np.random.Generator(np.random.Philox(seed + 10**6))
        prompt = generator.integers(0, config["vocab_size"], sum(CHUNKS)).tolist()
        model, _ = load_model(folder)
        model.set_dtype(mx.float32)
        tokens, logits, margin = decode(model, prompt, make_prompt_cache(model), MARGIN)
        if margin < MARGIN or len(set(tokens)) < DISTINCT_TOKENS:
            continue
        kv16_tokens, kv16_logits, _ = decode(model, prompt, [rounded(cache) for cache in make_prompt_cache(model)])
        if kv16_tokens == tokens:
            break
    else:
        sys.exit(f"{folder}: no fair seed in 1000; lower MARGIN or change the recipe")
    ends = np.cumsum(CHUNKS) - 1
    reference = {
        "prompt": mx.array(prompt, dtype=mx.int32),
        "chunks": mx.array(CHUNKS, dtype=mx.int32),
        "tokens": mx.array(tokens, dtype=mx.int32),
        "rows": mx.array([*ends.tolist(), *(int(ends[-1]) + step for step in KEPT_STEPS)], dtype=mx.int32),
        "logits": logits,
        "kv16.logits": kv16_logits,
    }
    if recipe.dtype != "float32":
        native, _ = load_model(folder)
        native_tokens, native_logits, _ = decode(native, prompt, make_prompt_cache(native))
        reference["native.tokens"] = mx.array(native_tokens, dtype=mx.int32)
        reference["native.logits"] = native_logits
    save(folder / "reference.safetensors", reference, {"format": "linnet-parity"})
    write_json(
        folder / "recipe.json",
        {
            "recipe": recipe.to_json(),
            "seed": seed,
            "smallest_greedy_margin": round(margin, 6),
            "mlx_lm": version("mlx-lm"),
            "mlx": mx.__version__,
            "numpy": np.__version__,
        },
    )
    print(f"{folder.parent.name}/{folder.name}: seed {seed}, margin {margin:.4f}, {len(set(tokens))} distinct tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "fixtures")
    parser.add_argument("names", nargs="*", help="FAMILY/NAME; all without")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    known = {
        f"{family}/{recipe.name}": (recipe, base, index)
        for family, (base, recipes) in FAMILIES.items()
        for index, recipe in enumerate(recipes)
    }
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in arguments.names or known:
        recipe, base, index = known[name]
        make_fixture(recipe, base, arguments.out / name, 1000 * (index + 1))


if __name__ == "__main__":
    main()
