"""Silero VAD: Linnet beside onnxruntime on the package's models, one thread each, alternating; medians and ratios.

`make bench-vad`. Two ways to hear: chunk by chunk as the samples come (the package's `silero_vad.onnx` with a call for each
chunk of 32 ms), and a whole recording (its `silero_vad_16k_sequence.onnx` with a call for each 512 chunks).
"""

import json
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime
import soundfile

import sources

ROUNDS = 15


def session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    model = sources.wheels() / "silero_vad" / "data" / name
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def chunk_by_chunk(model: onnxruntime.InferenceSession, samples: np.ndarray) -> float:
    state, rate, chunk = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64), np.zeros((1, 576), np.float32)
    begin = time.perf_counter()
    for start in range(0, len(samples) - 511, 512):
        chunk[0, :64] = chunk[0, -64:]
        chunk[0, 64:] = samples[start : start + 512]
        _, state = model.run(None, {"input": chunk, "state": state, "sr": rate})
    return time.perf_counter() - begin


def whole(model: onnxruntime.InferenceSession, samples: np.ndarray) -> float:
    frames = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    before = np.concatenate([np.zeros((1, 64), np.float32), frames[:-1, -64:]])
    blocks = np.concatenate([before, frames], axis=1)
    hidden = cell = np.zeros((1, 1, 128), np.float32)
    begin = time.perf_counter()
    for start in range(0, len(blocks), 512):
        _, hidden, cell = model.run(None, {"input": blocks[start : start + 512], "h": hidden, "c": cell})
    return time.perf_counter() - begin


def main() -> None:
    binary = sys.argv[1]
    clip = sources.ROOT / "engine" / "speech" / "tests" / "fixtures" / "speech" / "jfk.flac"
    samples, _ = soundfile.read(clip, dtype="float32")
    seconds = len(samples) / 16000
    streaming, sequence = session("silero_vad.onnx"), session("silero_vad_16k_sequence.onnx")
    times = {"linnet, chunk by chunk": [], "onnxruntime, chunk by chunk": [], "linnet, whole": [], "onnxruntime, whole": []}
    for _ in range(ROUNDS):
        # The first round of a process warms its caches, as the calls before this one have warmed onnxruntime's.
        told = subprocess.run([binary, str(clip), "2"], check=True, capture_output=True, text=True).stdout.split()
        times["linnet, chunk by chunk"].append(float(told[3]))
        times["linnet, whole"].append(float(told[4]))
        times["onnxruntime, chunk by chunk"].append(chunk_by_chunk(streaming, samples))
        times["onnxruntime, whole"].append(whole(sequence, samples))
    medians = {name: statistics.median(found) / seconds * 1000 for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name:30} {median:6.3f} ms per second of audio")
    for way in ("chunk by chunk", "whole"):
        ratio = medians[f"linnet, {way}"] / medians[f"onnxruntime, {way}"]
        print(f"{way}: {ratio:.2f} of onnxruntime's time")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
