"""Builds whisper.cpp for this machine, from the sources that the Rust package whisper-rs-sys carries."""

import subprocess
import sys
from pathlib import Path

import models

PACKAGE = "whisper-rs-sys"
VERSION = "0.15.0"
BUILD = models.KEPT / "whisper.cpp"
FLAGS = [
    "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_LLAMAFILE=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DWHISPER_BUILD_TESTS=OFF", "-DWHISPER_BUILD_EXAMPLES=OFF", "-DWHISPER_BUILD_SERVER=OFF",
]


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def sources() -> Path:
    """The sources, as cargo keeps them."""
    manifest = models.KEPT / "fetch" / "Cargo.toml"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    (manifest.parent / "lib.rs").write_text("")
    manifest.write_text(
        f'[package]\nname = "fetch"\nversion = "0.1.0"\nedition = "2024"\n[lib]\npath = "lib.rs"\n'
        f'[dependencies]\n{PACKAGE} = "={VERSION}"\n[workspace]\n'
    )
    metadata = models.json.loads(run("cargo", "metadata", "--format-version", "1", "--manifest-path", manifest))
    found = next(package for package in metadata["packages"] if package["name"] == PACKAGE)
    return Path(found["manifest_path"]).parent / "whisper.cpp"


def program() -> Path:
    """The program that whisper_bench.c becomes."""
    target = BUILD / "whisper_bench"
    source = Path(__file__).with_name("whisper_bench.c")
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    root = sources()
    tools = Path(sys.executable).parent
    run(tools / "cmake", "-S", root, "-B", BUILD, f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", *FLAGS)
    run(tools / "cmake", "--build", BUILD, "--target", "whisper")
    libraries = [str(path) for name in ("whisper", "ggml", "ggml-cpu", "ggml-base") for path in BUILD.rglob(f"lib{name}.a")]
    object_file = BUILD / "whisper_bench.o"
    run("cc", "-O2", f"-I{root / 'include'}", f"-I{root / 'ggml/include'}", "-c", source, "-o", object_file)
    run("c++", object_file, *libraries, "-lpthread", "-fopenmp", "-lm", "-o", target)
    return target


if __name__ == "__main__":
    print(program())
