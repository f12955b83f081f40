"""mlx-whisper without what it depends on for other work (downloads, compiled word times, progress bars)."""

import sys
import types
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "speech"))
from sources import wheels  # noqa: E402


class NoBar:
    """A progress bar that shows nothing."""

    def __init__(self, *_arguments, **_options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    def update(self, *_arguments):
        pass


def stand_in(name: str, **members) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def load():
    """The module `mlx_whisper`."""
    stand_in("numba", jit=lambda **_options: lambda function: function)
    stand_in("scipy", signal=types.SimpleNamespace())
    stand_in("huggingface_hub", snapshot_download=None)
    stand_in("tqdm", tqdm=NoBar)
    sys.path.insert(0, str(wheels()))
    import mlx_whisper

    return mlx_whisper


def filters() -> np.ndarray:
    """Whisper's 80 mel filters."""
    with np.load(wheels() / "mlx_whisper/assets/mel_filters.npz") as file:
        return file["mel_80"]
