"""Writes down what the references understand of the clips: engine/speech/tests/fixtures/references.json.

Greedy texts are mlx-whisper's on MLX's CPU build in single precision, those of beam search faster-whisper's, both at
temperature 0 without falling back.
"""

import json

import clips
import mlx_reference
import models
from faster_whisper import WhisperModel

OUT = clips.ROOT / "engine/speech/tests/fixtures/references.json"


def main() -> None:
    mlx_whisper = mlx_reference.load()
    found = {"said": {name: clips.said(name) for name in clips.CLIPS}, "clips": clips.CLIPS}
    for model in models.PACKAGES:
        texts = found.setdefault(model, {})
        peers = {kind: WhisperModel(str(models.ctranslate2(model)), device="cpu", compute_type=kind) for kind in ("float32", "int8")}
        for clip in clips.CLIPS:
            samples = clips.samples(clip)
            of_clip = texts.setdefault(clip, {})
            for kind, peer in peers.items():
                for beam in (1, 5):
                    segments, _ = peer.transcribe(samples, language="en", beam_size=beam, temperature=0.0)
                    of_clip[f"faster-whisper {kind} beam {beam}"] = "".join(segment.text for segment in segments).strip()
            result = mlx_whisper.transcribe(
                samples, path_or_hf_repo=str(models.mlx(model)), language="en", temperature=0.0, fp16=False
            )
            of_clip["mlx-whisper greedy"] = result["text"].strip()
            print(model, clip, flush=True)
            OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
