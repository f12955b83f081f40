"""Model folders from a recipe and a seed, and the list of tensors that lets any language make the same."""

import hashlib
import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import safetensors
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from laws import law
from recipes import ExactRecipe
from seeded import make_tensor

TYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32"}
LONG_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U32": "uint32"}


def describe(recipe: ExactRecipe, base: dict) -> tuple[dict, list]:
    """The config, and for each tensor [name, type, shape] or [name, type, shape, middle, step].

    Nothing is computed: MLX's lazy arrays know their shapes, so this works for models of any size.
    """
    config = base | recipe.config | {"torch_dtype": recipe.dtype}
    model_class, args_class = _get_classes(config=config)
    model = model_class(args_class.from_dict(config))
    model.set_dtype(getattr(mx, recipe.dtype))
    chosen: dict = {}
    if recipe.quantization:

        def choose(path: str, module: nn.Module) -> bool | dict:
            choice = recipe.layer_quantization.get(path, hasattr(module, "to_quantized"))
            if choice:
                chosen[path] = recipe.quantization if choice is True else choice
            return choice

        nn.quantize(model, **recipe.quantization, class_predicate=choose)
        config["quantization"] = recipe.quantization | recipe.layer_quantization
        config["quantization_config"] = config["quantization"]
    tensors = []
    for name, array in sorted(tree_flatten(model.parameters())):
        drawn = law(name, array.shape, chosen.get(name.rpartition(".")[0]))
        tensors.append([name, TYPES[array.dtype], list(array.shape), *(drawn or ())])
    return config, tensors


def write_model(config: dict, tensors: list, seed: int, folder: Path) -> str:
    """Writes config.json and model.safetensors; returns the digest of the weights, tensor after tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    digest, kept_alive, specs = hashlib.sha256(), [], {}
    for index, (name, dtype, shape, *drawn) in enumerate(tensors):
        array = np.ascontiguousarray(make_tensor(seed, index, dtype, shape, *(drawn or (None, None))))
        digest.update(array.tobytes())
        kept_alive.append(array)
        specs[name] = safetensors.TensorSpec(dtype=LONG_NAMES[dtype], shape=shape, data_ptr=array.ctypes.data,
                                             data_len=array.nbytes)
    (folder / "model.safetensors").write_bytes(safetensors.serialize(specs, {"format": "mlx"}))
    return digest.hexdigest()
