"""mlx-whisper's network without what the package needs beside it: numba and scipy only serve its word times."""

import json
import sys
import types
from pathlib import Path


def stand_in(name: str, **members) -> None:
    """A module that is imported and not used here."""
    module = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    sys.modules.setdefault(name, module)


# The package's files alone: what it depends on would bring PyTorch.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "speech"))
import sources  # noqa: E402

sys.path.insert(0, str(sources.wheels()))
signal = types.ModuleType("scipy.signal")
stand_in("scipy", signal=signal)
stand_in("scipy.signal")
stand_in("numba", jit=lambda **_: lambda function: function)
stand_in("huggingface_hub", snapshot_download=None)
stand_in("tqdm", tqdm=None)
stand_in("tiktoken", Encoding=None)

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_unflatten  # noqa: E402
from mlx_whisper._version import __version__ as VERSION  # noqa: E402, F401
from mlx_whisper.whisper import ModelDimensions, Whisper  # noqa: E402

SIZE_FIELDS = tuple(ModelDimensions.__annotations__)


def empty(config: dict, dtype: mx.Dtype) -> Whisper:
    """A model of these sizes, quantized as the configuration says, its weights unset."""
    model = Whisper(ModelDimensions(**{name: config[name] for name in SIZE_FIELDS}), dtype)
    model.set_dtype(dtype)
    if quantization := config.get("quantization"):
        # As `mlx_whisper.load_models.load_model` and `mlx_whisper/convert.py` choose.
        nn.quantize(model, **quantization, class_predicate=lambda _, m: isinstance(m, (nn.Linear, nn.Embedding)))
    return model


def load(folder: Path, dtype: mx.Dtype) -> Whisper:
    """The model of a folder; its weights in `dtype` where they are floats."""
    config = json.loads((folder / "config.json").read_text())
    model = empty(config, dtype)
    weights = mx.load(str(folder / "model.safetensors"))
    floats = (mx.float32, mx.float16, mx.bfloat16)
    weights = {name: array.astype(dtype) if array.dtype in floats else array for name, array in weights.items()}
    model.update(tree_unflatten(list(weights.items())))
    return model
