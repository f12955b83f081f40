"""Fetches, once, what the fixtures are made from: files of packages, without what those packages depend on."""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "target" / "speech-sources"

# The reference for mel spectra, the detector's weights with its own runtime's model, the frequencies of words.
WHEELS = {
    "mlx_whisper-0.4.3-py3-none-any.whl": ("mlx-whisper==0.4.3", "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489"),
    "silero_vad-6.2.3-py3-none-any.whl": ("silero-vad==6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    "wordfreq-3.1.1-py3-none-any.whl": ("wordfreq==3.1.1", "4b1c6ecffc6198be3396d5cf871c4423ca71c907c231348d352dd54d62b97473"),
}
# The original of Whisper, whose decoding is more complete; its sources alone.
OPENAI_WHISPER = ("openai_whisper-20250625.tar.gz", "openai-whisper==20250625", "37a91a3921809d9f44748ffc73c0a55c9f366c85a3ef5c2ae0cc09540432eb96")
# Real speech: President Kennedy in 1961, as whisper.cpp ships it (the package holds its sources), and five sentences that
# a volunteer of LibriVox reads from Sense and Sensibility, as PocketSphinx ships them. Both are in the public domain.
KENNEDY = ("nodejs-whisper@0.3.1", "nodejs-whisper-0.3.1.tgz", "package/cpp/whisper.cpp/bindings/go/samples/jfk.wav")
LIBRIVOX = "pocketsphinx-testdata"
LIBRIVOX_FOLDER = "usr/share/pocketsphinx/test/data/librivox"


def run(*command: str) -> None:
    subprocess.run(command, cwd=KEPT, check=True, stdout=subprocess.DEVNULL)


def package(name: str, requirement: str, sha256: str) -> Path:
    """A package's file, fetched once."""
    file = KEPT / name
    if not file.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", requirement)
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise SystemExit(f"{file} is not the file that the fixtures were made from: delete it and try again")
    return file


def wheels() -> Path:
    """The folder that the wheels are unpacked in."""
    unpacked = KEPT / "wheels"
    for name, (requirement, sha256) in WHEELS.items():
        with zipfile.ZipFile(package(name, requirement, sha256)) as archive:
            archive.extractall(unpacked)
    return unpacked


def openai_whisper() -> Path:
    """The folder of openai/whisper's modules."""
    name = OPENAI_WHISPER[0]
    with tarfile.open(package(*OPENAI_WHISPER)) as packed:
        packed.extractall(KEPT, filter="data")
    return KEPT / name.removesuffix(".tar.gz") / "whisper"


def speech() -> dict[str, Path]:
    """The clips of real speech, by name. Needs npm, and apt on Debian."""
    package, archive, member = KENNEDY
    KEPT.mkdir(parents=True, exist_ok=True)
    if not (KEPT / archive).exists():
        run("npm", "pack", "--silent", package)
    with tarfile.open(KEPT / archive) as packed:
        packed.extract(member, KEPT, filter="data")
    if not list(KEPT.glob(f"{LIBRIVOX}*.deb")):
        run("apt-get", "download", LIBRIVOX)
    run("dpkg-deb", "-x", str(next(KEPT.glob(f"{LIBRIVOX}*.deb"))), "debian")
    clips = {"jfk": KEPT / member}
    for clip in sorted((KEPT / "debian" / LIBRIVOX_FOLDER).glob("*.wav")):
        clips[f"librivox-{clip.stem[-4:]}"] = clip
    return clips
