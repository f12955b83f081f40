"""Prepares what the `mlx` feature links against on Linux, where mlx-sys cannot build MLX by itself.

In target/mlx (or the folder mlx of CARGO_TARGET_DIR):
  wheel/           MLX's libraries, from the mlx-cpu wheel
  lib/libmlxc.so   mlx-c, from the sources inside the mlx-sys crate, against these
  gen/bindings.rs  what mlx-sys's build script would have generated
and .cargo/mlx-linux.toml, which tells cargo to use these instead of running that build script. Each part is made
again only when something it was made from has changed. On macOS there is nothing to do: mlx-sys builds MLX there.

docs/decisions/mlx-on-linux.md says why it is done this way.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOM = Path(__file__).resolve().parent
ROOT = ROOM.parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "mlx"
WHEEL = TARGET / "wheel"
LIBRARY = TARGET / "lib" / "libmlxc.so"
BINDINGS = TARGET / "gen" / "bindings.rs"
CARGO_CONFIG = ROOT / ".cargo" / "mlx-linux.toml"
CXX = os.environ.get("CXX", "c++")
CC = os.environ.get("CC", "cc")

# mlx-c is a thin layer: optimizing it further buys nothing and takes twice as long.
CXX_FLAGS = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=default", "-w"]


class Missing(Exception):
    """Something this machine lacks; the message says how to get it."""


def run(command: list[str], **options) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, **options)
    except FileNotFoundError as error:
        raise Missing(f"{command[0]} is not there; `sh tests/setup/system.sh build` installs compilers") from error
    if result.returncode != 0:
        raise SystemExit(f"mlx: this failed:\n  {' '.join(map(str, command))}\n{result.stderr.strip()[:4000]}")
    return result.stdout


def mlx_sys_source() -> Path:
    """The folder of the mlx-sys crate that Cargo.lock names."""
    metadata = json.loads(run(["cargo", "metadata", "--format-version=1", "--locked", "--all-features"], cwd=ROOT))
    for package in metadata["packages"]:
        if package["name"] == "mlx-sys":
            return Path(package["manifest_path"]).parent
    raise Missing("no crate of the workspace depends on mlx-sys; Cargo.lock should list it")


def wheel_folder() -> Path:
    """The `mlx` folder that the mlx-cpu wheel installed into this environment."""
    folder = next((path / "mlx" for path in map(Path, sys.path) if (path / "mlx/lib/libmlx.so").is_file()), None)
    if folder is None:
        raise Missing("the mlx-cpu wheel is not installed here; run this by `make mlx`")
    return folder


def host_triple() -> str:
    for line in run(["rustc", "-vV"]).splitlines():
        if line.startswith("host: "):
            return line.removeprefix("host: ")
    raise Missing("rustc does not name its host; install Rust by rustup")


def digest(*parts: object) -> str:
    """A key of strings and of the contents of files and folders."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
            for path in files:
                state.update(str(path.relative_to(part)).encode())
                state.update(path.read_bytes())
        else:
            state.update(repr(part).encode())
    return state.hexdigest()


def is_current(product: Path, key: str) -> bool:
    stamp = product.with_name(product.name + ".key")
    return product.is_file() and stamp.is_file() and stamp.read_text() == key


def mark_current(product: Path, key: str) -> None:
    product.with_name(product.name + ".key").write_text(key)


def has_format() -> bool:
    probe = subprocess.run([CXX, "-std=c++20", "-fsyntax-only", "-xc++", "-"], capture_output=True, text=True,
                           input='#include <format>\nauto text = std::format("{}", 1);\n')
    return probe.returncode == 0


def copy_wheel_libraries(wheel: Path) -> None:
    """Copies MLX's libraries out of the environment, which may be made anew, in the layout their own rpaths expect."""
    copy = WHEEL / "mlx" / "lib" / "libmlx.so"
    key = digest(wheel / "lib" / "libmlx.so")
    if is_current(copy, key):
        return
    shutil.rmtree(WHEEL, ignore_errors=True)
    shutil.copytree(wheel / "lib", copy.parent)
    for dependencies in wheel.parent.glob("mlx_*.libs"):
        shutil.copytree(dependencies, WHEEL / dependencies.name)
    mark_current(copy, key)


def build_library(mlx_c: Path, wheel: Path) -> None:
    """Compiles mlx-c into libmlxc.so.

    Its SONAME is its absolute path, so that programs linked with it find it without an rpath, which would have to
    come in by rustflags and make cargo rebuild every crate. It finds libmlx.so beside itself first, then in WHEEL.
    """
    compiler = run([CXX, "--version"]).splitlines()[0]
    key = digest(mlx_c / "mlx", ROOM / "mlxc", wheel / "lib" / "libmlx.so", compiler, CXX_FLAGS, str(LIBRARY),
                 Path(__file__))
    if is_current(LIBRARY, key):
        return
    print("mlx: compiling mlx-c (about 40 s of processor time)", flush=True)
    work = TARGET / "build"
    shutil.rmtree(work, ignore_errors=True)
    (work / "include").mkdir(parents=True)
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    if not has_format():
        shutil.copy(ROOM / "mlxc" / "format", work / "include")
    # Everything includes MLX's headers; read once, they take a quarter of the time.
    prefix = work / "include" / "prefix.h"
    half = "" if platform.machine() == "aarch64" else f'#include "{ROOM / "mlxc" / "half.h"}"\n'
    # mlx-c uses <format> without including it: other compilers' MLX headers bring it.
    prefix.write_text(f'#include <format>\n#include "mlx/mlx.h"\n{half}')
    flags = [*CXX_FLAGS, f"-I{work / 'include'}", f"-I{mlx_c}", f"-I{wheel / 'include'}"]
    run([CXX, *flags, "-xc++-header", str(prefix), "-o", str(prefix) + ".gch"])

    def compile_one(source: Path) -> str:
        output = str(work / (source.stem + ".o"))
        run([CXX, *flags, "-include", str(prefix), "-c", str(source), "-o", output])
        return output

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sorted((mlx_c / "mlx" / "c").glob("*.cpp"))))
    clock = str(work / "mach_time.o")
    run([CC, "-O1", "-fPIC", "-c", str(ROOM / "mlxc" / "mach_time.c"), "-o", clock])
    # -z defs: a symbol that libmlx.so lacks fails here and not when a program starts.
    run([CXX, "-shared", "-Wl,-z,defs", f"-Wl,-soname,{LIBRARY}", "-Wl,-rpath,$ORIGIN:$ORIGIN/../wheel/mlx/lib",
         *objects, clock, f"-L{WHEEL / 'mlx' / 'lib'}", "-lmlx", "-o", str(LIBRARY)])
    shutil.rmtree(work)
    mark_current(LIBRARY, key)


def generate_bindings(mlx_sys: Path) -> None:
    """Generates bindings.rs with the bindgen settings of mlx-sys itself."""
    mlx_c = mlx_sys / "src" / "mlx-c"
    tool = ROOM / "bindings"
    key = digest(mlx_c / "mlx" / "c", mlx_sys / "src" / "bindgen_config.rs", tool / "half.h", tool / "Cargo.lock",
                 tool / "src", Path(__file__))
    if is_current(BINDINGS, key):
        return
    print("mlx: generating bindings.rs (bindgen is built first, about a minute)", flush=True)
    import clang.native

    include = run([CC, "-print-file-name=include"]).strip()
    environment = {
        **os.environ,
        "MLX_SYS_SOURCE": str(mlx_sys),
        "LIBCLANG_PATH": str(Path(clang.native.__path__[0])),
        # The wheel holds the library without the compiler's own headers.
        "BINDGEN_EXTRA_CLANG_ARGS": f"-isystem {include}",
        "CARGO_TARGET_DIR": str(TARGET / "bindgen"),
    }
    BINDINGS.parent.mkdir(parents=True, exist_ok=True)
    run(["cargo", "run", "--quiet", "--locked", "--manifest-path", str(tool / "Cargo.toml"), "--",
         str(mlx_c), str(tool / "half.h"), str(BINDINGS)], env=environment)
    shutil.rmtree(TARGET / "bindgen")
    mark_current(BINDINGS, key)


def write_cargo_config() -> None:
    """Tells cargo what mlx-sys links with on this machine, in place of its build script."""
    text = f"""# Written by tests/mlx/prepare.py for this machine; `make mlx` writes it again.
[target.{host_triple()}.mlx]
rustc-link-search = ["native={LIBRARY.parent}"]
rustc-link-lib = ["dylib=mlxc"]
rustc-env = {{ OUT_DIR = "{BINDINGS.parent}" }}
"""
    if not CARGO_CONFIG.is_file() or CARGO_CONFIG.read_text() != text:
        CARGO_CONFIG.write_text(text)


def main() -> None:
    if sys.platform != "linux":
        print("mlx: nothing to prepare; mlx-sys builds MLX on macOS")
        return
    try:
        mlx_sys, wheel = mlx_sys_source(), wheel_folder()
        copy_wheel_libraries(wheel)
        build_library(mlx_sys / "src" / "mlx-c", wheel)
        generate_bindings(mlx_sys)
        write_cargo_config()
    except Missing as error:
        raise SystemExit(f"mlx: {error}") from None


if __name__ == "__main__":
    main()
