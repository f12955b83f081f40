"""Model folders from a list of tensors and a seed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import safetensors

from seeded import make_tensor

LONG_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U32": "uint32"}


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
