#!/usr/bin/env python3
"""Links the `linnet` program for macOS on Apple silicon, on Linux, with zig as C compiler and linker.

Apple's frameworks are empty stubs, and MLX's C library is not there at all: what belongs to them stays unresolved. It
proves that code for the machine is generated, that the C code in our dependencies compiles for it, and that no symbol
is missing but Apple's and MLX's.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import macho
import macos
import toolchain
from toolchain import BIN, MACOS, ROOT

TOOLS = {"CC": "cc", "CXX": "c++", "AR": "ar"}
# How the symbols begin that a Mac has and the stubs do not: Objective-C and Apple's C interfaces, by framework.
APPLES = (
    "_objc_", "_OBJC_", "__objc_", "__NSConcrete", "_NS", "_CF", "_kCF", "_IO", "_kIO", "_Sec", "_kSec", "_SC", "_kSC",
    "_MTL", "_dispatch_", "__dispatch_", "_os_", "__os_", "_mach_", "_cblas_", "_vDSP_", "_vv", "__Block_", "__xpc_",
)  # fmt: skip
MLXS = ("_mlx_",)


def write_tools(folder: Path) -> None:
    """Programs of one name each, as cargo and build scripts want them."""
    folder.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).resolve().parent / "zig.py"
    for tool in (*TOOLS.values(), "link"):
        words = [sys.executable, str(script), tool, str(MACOS.folder() / "stubs")]
        (folder / tool).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / tool).chmod(0o755)


def faults(program: macho.Program) -> list[str]:
    """What is wrong with a linked program, as sentences."""
    found = [] if program.has_entry else ["it has no entry point"]
    ours = [symbol for symbol in program.unresolved if not symbol.startswith((*APPLES, *MLXS))]
    return found + [f"{symbol} is defined nowhere, and is neither Apple's nor MLX's" for symbol in ours]


def main() -> int:
    if sys.platform == "darwin":
        return subprocess.run(["cargo", "build", "--locked", "-p", "linnet"], cwd=ROOT).returncode
    absent = toolchain.missing()
    if absent:
        raise toolchain.ToolchainError(f"linking for macOS needs a compiler: {absent}")
    MACOS.fetch()
    tools = MACOS.folder() / "zig"
    write_tools(tools)
    environment = {
        **macos.environment(),
        **{MACOS.variable(variable): str(tools / tool) for variable, tool in TOOLS.items()},
    }
    linker = {f"target.{MACOS.triple}.linker": f'"{tools / "link"}"'}
    settings = MACOS.settings("link", {**macos.PROFILE, **macos.MLX, **linker})
    built = subprocess.run([str(BIN / "cargo"), "build", "-p", "linnet", *settings], cwd=ROOT, env=environment)
    if built.returncode != 0:
        return built.returncode
    path = MACOS.folder() / "link" / MACOS.triple / "debug" / "linnet"
    program = macho.read(path)
    wrong = faults(program)
    print("\n".join(f"link-macos: {fault}" for fault in wrong))
    mlx = sum(symbol.startswith(MLXS) for symbol in program.unresolved)
    print(
        f"{path.name}: arm64 Mach-O, {path.stat().st_size / 1e6:.1f} MB; left to Apple's libraries: "
        f"{len(program.unresolved) - mlx - len(wrong)} symbols, to MLX's: {mlx}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    toolchain.run_or_exit(main)
