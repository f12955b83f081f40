"""A second of speech in every format that is read, and files that must be refused."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile


def at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    """`samples` (16 kHz, a whole number of half seconds) at another rate, band-limited: by its Fourier transform."""
    count = len(samples) * rate // 16000
    spectrum = np.fft.rfft(samples.astype(np.float64))
    kept = np.zeros(count // 2 + 1, complex)
    shared = min(len(spectrum), len(kept))
    kept[:shared] = spectrum[:shared]
    return np.fft.irfft(kept, count) * (count / len(samples))


def spread(mono: np.ndarray, channels: int) -> np.ndarray:
    """Channels of different loudness whose mean is `mono`."""
    gains = np.linspace(0.4, 1.6, channels) if channels > 1 else np.ones(1)
    return np.clip(mono[:, None] * gains[None, :], -1.0, 1.0)


def encode(path: Path, codec: str, rate: int, mono: np.ndarray, layout: str, **options: str) -> None:
    """Writes `path` with one of the encoders that PyAV brings."""
    channels = len(av.AudioLayout(layout).channels)
    pcm = (spread(mono, channels) * 32767).round().astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout, options=options)
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def video_only(path: Path) -> None:
    """A film without sound."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 16
        for index in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 80 * index, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def make(speech: np.ndarray, out: Path) -> None:
    """Writes everything into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    at = {rate: at_rate(speech, rate) for rate in (8000, 16000, 22050, 32000, 44100, 48000)}

    def write(name: str, rate: int, channels: int, subtype: str) -> None:
        soundfile.write(out / name, spread(at[rate], channels), rate, subtype)

    soundfile.write(out / "reference.flac", speech, 16000, "PCM_16")
    write("mono-8k-ulaw.wav", 8000, 1, "ULAW")
    write("mono-16k-16bit.wav", 16000, 1, "PCM_16")
    write("four-8k-24bit.wav", 8000, 4, "PCM_24")
    write("mono-22k-float.wav", 22050, 1, "FLOAT")
    write("mono-32k-8bit.wav", 32000, 1, "PCM_U8")
    write("mono-16k.aiff", 16000, 1, "PCM_16")
    write("stereo-48k.flac", 48000, 2, "PCM_16")
    write("stereo-44k.ogg", 44100, 2, "VORBIS")
    encode(out / "stereo-44k.mp3", "libmp3lame", 44100, at[44100], "stereo", b="64k")
    encode(out / "mono-22k.mp3", "libmp3lame", 22050, at[22050], "mono", b="32k")
    encode(out / "stereo-44k.m4a", "aac", 44100, at[44100], "stereo", b="64k")
    encode(out / "mono-16k.aac", "aac", 16000, at[16000], "mono", b="32k")
    encode(out / "stereo-44k-alac.m4a", "alac", 44100, at[44100][:22050], "stereo")
    encode(out / "mono-48k.opus", "libopus", 48000, at[48000], "mono", b="32k")
    encode(out / "stereo-48k.webm", "libopus", 48000, at[48000], "stereo", b="32k")
    encode(out / "six-48k.opus", "libopus", 48000, at[48000], "5.1", b="96k")
    encode(out / "ac3.mkv", "ac3", 48000, at[48000][:9600], "mono", b="64k")
    video_only(out / "no-sound.mp4")
    # A header that promises more than follows.
    whole = (out / "stereo-44k.m4a").read_bytes()
    (out / "torn.m4a").write_bytes(whole[: len(whole) // 2])
    flac = (out / "stereo-48k.flac").read_bytes()
    (out / "torn.flac").write_bytes(flac[: len(flac) // 2])
    (out / "endless.wav").write_bytes(
        b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
        + b"data" + struct.pack("<I", 0xFFFFFFFF) + (speech * 32767).astype("<i2").tobytes()
    )
