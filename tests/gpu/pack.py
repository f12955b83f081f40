"""Packs what another x86-64 Linux machine needs to run Linnet on MLX beside mlx_lm, into target/gpu/pack.tar.xz.

  bin/         our programs: `exact` (the parity suite), `make_model`, `linnet-arm`
  lib/         libmlxc.so
  site/        Python packages: mlx with its libraries, mlx_lm
  shapes/      recipes of the models to measure on
  about.json   versions

Nothing is looked for outside the folder but NVIDIA's own libraries, which run.py links in, and a C++ runtime.
With --mlx cuda (the default) MLX's library keeps the code of one GPU architecture; --mlx cpu packs MLX's CPU build in
the same layout, to try the whole path on a machine without a GPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from thin_fatbin import thin

ROOM = Path(__file__).resolve().parent
ROOT = ROOM.parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
OUT = ROOT / "target" / "gpu"
MLX = "0.32.2"
WHEELS = {"cuda": f"mlx-cuda-13=={MLX}", "cpu": f"mlx-cpu=={MLX}"}


def run(*command: object, **options) -> str:
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)
    if result.returncode != 0:
        sys.exit(f"pack: this failed: {' '.join(map(str, command))}")
    return result.stdout


def fetch_wheels(kind: str, python: str) -> list[Path]:
    """Wheels for the other machine's Python, which need not be this one's."""
    folder = OUT / f"wheels-{kind}-{python}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [WHEELS[kind], f"mlx=={MLX}", "mlx-lm==0.32.2"]
    if len(list(folder.glob("*.whl"))) < len(wanted):
        run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
            "--platform", "manylinux_2_35_x86_64", "--dest", folder, *wanted)
    return sorted(folder.glob("*.whl"))


def unpack_site(wheels: list[Path], site: Path, architecture: int | None) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    library = site / "mlx" / "lib" / "libmlx.so"
    if architecture is not None:
        sizes = thin(library, library, architecture)
        print(f"pack: kept sm_{architecture} of {', '.join(f'sm_{name}' for name in sorted(sizes))}")


def executable(name: str, *arguments: str) -> Path:
    """Builds with cargo and returns the program or test of this name."""
    lines = run("cargo", *arguments, "--locked", "--message-format=json-render-diagnostics").splitlines()
    built = [message for message in map(json.loads, lines) if message.get("executable")]
    found = [message["executable"] for message in built if message["target"]["name"] == name]
    if len(found) != 1:
        sys.exit(f"pack: cargo {' '.join(arguments)} made no {name}")
    return Path(found[0])


def patch(patchelf: str, file: Path, *arguments: object) -> None:
    run(patchelf, *arguments, file)


def pack_programs(folder: Path) -> None:
    patchelf = str(Path(sys.executable).parent / "patchelf")
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    soname = TARGET / "mlx" / "lib" / "libmlxc.so"
    library = folder / "lib" / "libmlxc.so"
    shutil.copy(soname, library)
    patch(patchelf, library, "--set-soname", "libmlxc.so", "--set-rpath", "$ORIGIN/../site/mlx/lib")
    for name, arguments in {
        "exact": ["test", "--no-run", "-p", "linnet-parity", "--features", "mlx", "--test", "exact"],
        "make_model": ["build", "--release", "-p", "linnet-parity", "--bin", "make_model"],
        "linnet-arm": ["build", "--release", "-p", "linnet-gpu", "--features", "mlx", "--bin", "linnet-arm"],
    }.items():
        program = folder / "bin" / name
        shutil.copy(executable(name, *arguments), program)
        patch(patchelf, program, "--replace-needed", soname, "libmlxc.so", "--set-rpath", "$ORIGIN/../lib")
        if name != "make_model" and "libmlxc.so" not in run(patchelf, "--print-needed", program).split():
            sys.exit(f"pack: {name} is not linked with MLX; does `make mlx` agree with CARGO_TARGET_DIR?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mlx", choices=sorted(WHEELS), default="cuda")
    parser.add_argument("--architecture", type=int, default=90, help="compute capability of the GPU, 90 for Hopper")
    parser.add_argument("--python", default="3.12", help="version of Python on the other machine")
    parser.add_argument("--shapes-python", type=Path, default=ROOT / "target/venv/parity/bin/python")
    arguments = parser.parse_args()
    folder, archive = OUT / "pack", OUT / "pack.tar.xz"
    shutil.rmtree(folder, ignore_errors=True)
    unpack_site(fetch_wheels(arguments.mlx, arguments.python), folder / "site",
                arguments.architecture if arguments.mlx == "cuda" else None)
    pack_programs(folder)
    run(arguments.shapes_python, ROOM / "shapes.py", folder / "shapes")
    about = {"mlx": arguments.mlx, "python": arguments.python, "commit": run("git", "rev-parse", "HEAD").strip(),
             "changed": bool(run("git", "status", "--porcelain").strip())}
    (folder / "about.json").write_text(json.dumps(about) + "\n")
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        tar.add(folder, arcname=".")
    print(f"pack: {archive} has {archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
