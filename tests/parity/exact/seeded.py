"""Weights from a seed, in arithmetic that any language repeats bit for bit.

The same definition stands in src/seeded.rs; a test there makes every fixture's weights again and compares digests.

Element i of tensor t draws the 64-bit word mix(key + (i + 1) * GOLDEN), key = mix(seed + (t + 1) * GOLDEN), mix being
splitmix64's finalizer and all sums modulo 2^64. Of that word
  codes    take the upper 32 bits: packed quantized codes, any pattern of which is valid
  uniform  takes the upper 16 bits k: middle + (k - 32767.5) * step in f32, each operation rounded, then rounded to
           the tensor's type, to even
"""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(word: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele, Lea, Flood 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def words(seed: int, tensor: int, count: int) -> np.ndarray:
    """The `count` words of a tensor."""
    with np.errstate(over="ignore"):
        key = mix(np.array([seed], dtype=np.uint64) + np.uint64(tensor + 1) * GOLDEN)
        return mix(key + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of f32 values rounded to bfloat16, which numpy lacks."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def make_tensor(seed: int, index: int, dtype: str, shape: list, middle: float | None, step: float | None) -> np.ndarray:
    """One tensor's elements; bfloat16 as its bits. Without `middle` and `step`: codes."""
    drawn = words(seed, index, int(np.prod(shape)))
    if middle is None:
        return (drawn >> np.uint64(32)).astype(np.uint32).reshape(shape)
    centred = (drawn >> np.uint64(48)).astype(np.float32) - np.float32(32767.5)
    values = np.float32(middle) + centred * np.float32(step)
    cast = {"F32": lambda v: v, "F16": lambda v: v.astype(np.float16), "BF16": to_bf16}[dtype]
    return cast(values).reshape(shape)
