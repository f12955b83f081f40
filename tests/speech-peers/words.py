"""Writes down when mlx-whisper hears each word of some clips: engine/speech/tests/fixtures/words.json.

Greedy, at temperature 0, in single precision on MLX's CPU build. What is heard with times of words can differ from what is
heard without: windows follow the last word.
"""

import importlib
import json
import sys

import numpy as np

import clips
import mlx_reference
import models

OUT = clips.ROOT / "engine/speech/tests/fixtures/words.json"
WANTED = {"tiny.en": ["3", "11", "33"], "base": ["3", "11"]}


def median_filter(values: np.ndarray, kernel_size: tuple) -> np.ndarray:
    """scipy.signal.medfilt along the last axis."""
    width = kernel_size[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(width // 2, width // 2)])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def main() -> None:
    mlx_reference.load()
    sys.modules["scipy"].signal.medfilt = median_filter
    transcribe = importlib.import_module("mlx_whisper.transcribe")
    found = {}
    for name, wanted in WANTED.items():
        folder = str(models.mlx(name))
        model = transcribe.ModelHolder.get_model(folder, transcribe.mx.float32)
        heads = json.loads((models.ctranslate2(name) / "config.json").read_text())["alignment_heads"]
        model.set_alignment_heads(np.array(heads))
        for clip in wanted:
            result = transcribe.transcribe(
                clips.samples(clip), path_or_hf_repo=folder, language="en", temperature=0.0, fp16=False, word_timestamps=True
            )
            words = [word for segment in result["segments"] for word in segment["words"]]
            heard = [[word["word"], round(float(word["start"]), 2), round(float(word["end"]), 2)] for word in words]
            found.setdefault(name, {})[clip] = heard
            print(name, clip, result["text"], flush=True)
    of_models = []
    for name, of_clips in found.items():
        lines = ",\n".join(f"  {json.dumps(clip)}: {json.dumps(heard, ensure_ascii=False)}" for clip, heard in of_clips.items())
        of_models.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    OUT.write_text("{\n" + ",\n".join(of_models) + "\n}\n")


if __name__ == "__main__":
    main()
