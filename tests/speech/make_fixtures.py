"""Makes the fixtures of engine/speech again: `make speech-fixtures`.

What each file holds, and from what it was made, stands in engine/speech/tests/fixtures/README.md.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile
from safetensors.numpy import save

import formats
import sources

RATE = 16000
OUT = sources.ROOT / "engine" / "speech" / "tests" / "fixtures"


def noise(seed: int, count: int, level: float) -> np.ndarray:
    """White noise from a linear congruential generator (Numerical Recipes' constants), the same in tests/common."""
    state, samples = seed, np.empty(count, np.float32)
    for index in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        samples[index] = np.float32((state >> 8) / 2**23 - 1.0) * np.float32(level)
    return samples


def mel(reference: Path, clips: dict[str, np.ndarray]) -> None:
    """Log-mel spectra as mlx-whisper computes them on MLX's CPU build."""
    spec = importlib.util.spec_from_file_location("audio", reference / "mlx_whisper" / "audio.py")
    audio = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audio)
    tensors = {}
    for mels in (80, 128):
        filters = np.array(audio.mel_filters(mels))
        rows, columns = np.nonzero(filters)
        tensors[f"filters-{mels}.at"] = (rows * filters.shape[1] + columns).astype(np.int32)
        tensors[f"filters-{mels}.value"] = filters[rows, columns]
        second = clips["jfk"][:RATE]
        tensors[f"second-{mels}"] = np.array(audio.log_mel_spectrogram(second, mels))
        # A window of 30 s as Whisper gets it, every 41st frame.
        padded = np.array(audio.log_mel_spectrogram(clips["jfk"], mels, padding=480000 - len(clips["jfk"])))
        tensors[f"window-{mels}"] = np.ascontiguousarray(padded[::41])
        tensors[f"noise-{mels}"] = np.array(audio.log_mel_spectrogram(noise(7, 4000, 0.01), mels))
    (OUT / "mel.safetensors").write_bytes(save(tensors))


def voice_activity(reference: Path, clips: dict[str, np.ndarray]) -> None:
    """Probabilities of the package's own model under onnxruntime, chunk by chunk, state and context carried on."""
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    model = reference / "silero_vad" / "data" / "silero_vad.onnx"
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    # Loud and soft noise, silence, and speech under noise.
    heard = dict(clips)
    heard["noise-loud"] = noise(1, 5 * RATE, 0.5)
    heard["noise-soft"] = noise(2, 5 * RATE, 0.003)
    heard["silence"] = np.zeros(5 * RATE, np.float32)
    heard["jfk-in-noise"] = clips["jfk"] + noise(3, len(clips["jfk"]), 0.05)
    heard["jfk-soft"] = clips["jfk"] * np.float32(0.01)
    tensors = {}
    for name, samples in heard.items():
        state, context, probabilities = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
        for start in range(0, len(samples), 512):
            chunk = np.pad(samples[start : start + 512], (0, max(0, start + 512 - len(samples))))
            chunk = np.concatenate([context, chunk])
            inputs = {"input": chunk[None], "state": state, "sr": np.array(RATE, np.int64)}
            probability, state = session.run(None, inputs)
            probabilities.append(probability.item())
            context = chunk[-64:]
        tensors[name] = np.array(probabilities, np.float32)
        print(f"{name:16} speech in {np.mean(tensors[name] > 0.5):5.1%} of {len(probabilities)} chunks")
    (OUT / "vad.safetensors").write_bytes(save(tensors))


def main() -> None:
    reference = sources.wheels()
    (OUT / "speech").mkdir(parents=True, exist_ok=True)
    clips = {}
    for name, path in sources.speech().items():
        samples, rate = soundfile.read(path, dtype="int16")
        assert rate == RATE and samples.ndim == 1, path
        soundfile.write(OUT / "speech" / f"{name}.flac", samples, rate, compression_level=1.0)
        clips[name] = samples.astype(np.float32) / np.float32(32768)
    mel(reference, clips)
    voice_activity(reference, clips)
    formats.make(clips["jfk"][RATE // 2 : RATE // 2 + RATE], OUT / "formats")


if __name__ == "__main__":
    sys.exit(main())
