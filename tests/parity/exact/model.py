"""What a recipe's model is made of: the list of tensors that lets any language make the same."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from laws import law
from recipes import ExactRecipe

TYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32"}


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
