"""Which Whisper models are compared, and how their parameters are drawn."""

from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass(frozen=True)
class WhisperRecipe:
    """One tiny model: its sizes are those of SIZES but for `config`."""

    name: str
    why: str
    config: dict = field(default_factory=dict)
    # Type of dense weights, norms, scales and biases.
    dtype: str = "float16"
    # None for a dense model, or {"group_size": ..., "bits": ...}.
    quantization: dict | None = None

    def to_json(self) -> dict:
        return asdict(self)


# A window of 48 frames; 40 positions, so that sequences are short beside it and long beside a page of keys.
SIZES = {
    "model_type": "whisper",
    "n_mels": 80,
    "n_audio_ctx": 24,
    "n_audio_state": 128,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": 96,
    "n_text_ctx": 40,
    "n_text_state": 128,
    "n_text_head": 2,
    "n_text_layer": 2,
}

RECIPES = [
    WhisperRecipe("dense-f32", "the reference's own default type", dtype="float32"),
    WhisperRecipe("dense-f16", "128 bins, small heads, named alignment heads, as large-v3 has them",
                  {"n_mels": 128, "n_audio_head": 4, "n_text_head": 4, "alignment_heads": [[1, 3], [0, 1], [1, 0]]}),
    WhisperRecipe("dense-bf16", "bfloat16; fewer decoder layers than encoder layers, as turbo and distil have them",
                  {"n_audio_layer": 3, "n_text_layer": 1}, dtype="bfloat16"),
    WhisperRecipe("affine-8bit-g64", "quantized to 8 bits", quantization={"group_size": 64, "bits": 8}),
    WhisperRecipe("affine-4bit-g32", "quantized to 4 bits, scales in float32", dtype="float32",
                  quantization={"group_size": 32, "bits": 4}),
    WhisperRecipe("long-window", "more positions than a page of keys, and not a multiple of it",
                  {"n_audio_ctx": 150, "n_text_layer": 1, "n_audio_layer": 1}),
]

# (k - 32767.5) * step of a uniform law has this standard deviation per unit of step.
UNIT = 65536 / np.sqrt(12)


def uniform(middle: float, deviation: float) -> tuple[float, float]:
    """The law of values with this mean and standard deviation, both exact in f32."""
    return float(np.float32(middle)), float(np.float32(deviation / UNIT))


def law(name: str, shape: tuple, quantization: dict | None) -> tuple[float, float] | None:
    """Middle and step of one parameter, so that activations keep their size from layer to layer; None for packed codes.

    `quantization` is that of the module the parameter belongs to, None where it is dense.
    """
    module, _, kind = name.rpartition(".")
    if "ln" in module.rpartition(".")[2]:
        return uniform(1.0, 0.2) if kind == "weight" else uniform(0.0, 0.2)
    if kind == "bias":
        return uniform(0.0, 0.3)
    if "embedding" in name:
        deviation = 0.3
    else:
        fan_in = int(np.prod(shape[1:]))
        if quantization is not None:
            # Of the columns that the matrix stands for.
            fan_in = shape[1] * (quantization["group_size"] if kind != "weight" else 32 / quantization["bits"])
        deviation = (1.0 if module.endswith((".query", ".key")) else 1.5) / np.sqrt(fan_in)
    if quantization is not None:
        if kind == "weight":
            return None
        bits, levels = quantization["bits"], 2 ** quantization["bits"] - 1
        scale = deviation / np.sqrt((4**bits - 1) / 12)
        # Scales and biases of a group are drawn apart, so its weights have a mean of their own, as real ones do.
        middle = -scale * levels / 2
        return uniform(scale, 0.15 * scale) if kind == "scales" else uniform(middle, -0.1 * middle)
    return uniform(0.0, deviation)
