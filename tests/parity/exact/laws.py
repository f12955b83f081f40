"""How the parameters of a model are drawn: so that activations keep their size from layer to layer."""

import numpy as np

# (k - 32767.5) * step of a uniform law has this standard deviation per unit of step.
UNIT = 65536 / np.sqrt(12)


def f32(value: float) -> float:
    return float(np.float32(value))


def uniform(middle: float, deviation: float) -> tuple[float, float]:
    """The law of values with this mean and standard deviation, both exact in f32."""
    return f32(middle), f32(deviation / UNIT)


def deviation_of(name: str, fan_in: int) -> float:
    """The standard deviation of a matrix's weights."""
    if "embed" in name:
        # Small beside what the layers add: an embedding that is the output head too would else predict its own token.
        return 0.3
    # Queries and keys stay smaller: scores that are too sharp leave attention a plain copy of one token.
    return (1.0 if "q_proj" in name or "k_proj" in name else 1.5) / np.sqrt(fan_in)


def law(name: str, shape: tuple, quantization: dict | None) -> tuple[float, float] | None:
    """Middle and step of one parameter; None for packed codes.

    `quantization` is that of the module the parameter belongs to, None where it is dense.
    """
    module, _, kind = name.rpartition(".")
    if quantization is not None and kind in ("weight", "scales", "biases"):
        if kind == "weight":
            return None
        bits, levels = quantization["bits"], 2 ** quantization["bits"] - 1
        scale = deviation_of(module, shape[-1] * quantization["group_size"]) / np.sqrt((4**bits - 1) / 12)
        # Scales and biases of a group are drawn apart, so its weights have a mean of their own, as real ones do.
        middle = -scale * levels / 2
        return uniform(scale, 0.15 * scale) if kind == "scales" else uniform(middle, -0.1 * middle)
    if "norm" in name:
        return uniform(1.0, 0.2)
    if kind == "bias":
        return uniform(0.0, 0.3)
    return uniform(0.0, deviation_of(name, shape[-1]))
