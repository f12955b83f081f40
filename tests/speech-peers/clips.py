"""Real speech of about 3, 11, 33 and 62 seconds: the clips in engine/speech/tests/fixtures/speech, alone and joined."""

from pathlib import Path

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[2]
SPEECH = ROOT / "engine/speech/tests/fixtures/speech"
SAMPLE_RATE = 16_000
# Joined as they are: what they begin and end with is silence enough.
CLIPS = {
    "3": ["librivox-0880"],
    "11": ["jfk"],
    "33": ["jfk", "librivox-0870", "librivox-0920", "librivox-0890", "librivox-0930"],
    "62": [
        "jfk", "librivox-0870", "librivox-0920", "librivox-0890", "librivox-0880", "librivox-0930",
        "librivox-0920", "librivox-0870", "librivox-0890", "librivox-0880", "librivox-0930",
    ],
}


def samples(name: str) -> np.ndarray:
    """A clip's samples: mono, 16 kHz."""
    parts = []
    for part in CLIPS[name]:
        read, rate = soundfile.read(SPEECH / f"{part}.flac", dtype="float32")
        assert rate == SAMPLE_RATE and read.ndim == 1
        parts.append(read)
    return np.concatenate(parts)


def said(name: str) -> str:
    """What is said in a clip."""
    lines = (SPEECH / "transcripts.txt").read_text().splitlines()
    texts = dict(line.split("\t", 1) for line in lines)
    return " ".join(texts[part] for part in CLIPS[name])


def write(folder: Path) -> dict[str, Path]:
    """The clips as WAV files, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name in CLIPS:
        paths[name] = folder / f"{name}.wav"
        soundfile.write(paths[name], samples(name), SAMPLE_RATE, subtype="PCM_16")
    return paths
