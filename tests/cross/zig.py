#!/usr/bin/env python3
"""Compiler, archiver and linker for macOS, as cargo and build scripts call them: `zig.py TOOL STUBS ARGUMENT...` with
TOOL one of cc, c++, ar, link.

Apple's libraries are not here. For each that the linker is asked for, an empty stub is made in the folder STUBS; what
it would define is left to be looked up when the program starts, and macho.py says which symbols those are.
"""

import os
import subprocess
import sys
from pathlib import Path

# clang names the target by these; zig has a way of its own.
DROPPED_WITH_VALUE = {"-arch", "-isysroot", "-target", "--target"}
DROPPED_PREFIXES = ("--target=", "-mmacosx-version-min=", "-mmacos-version-min=")
# What zig brings itself.
OWN_LIBRARIES = {"System", "c", "m"}


def without_target(arguments: list[str]) -> list[str]:
    kept = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in DROPPED_WITH_VALUE:
            skip = True
        elif not argument.startswith(DROPPED_PREFIXES):
            kept.append(argument)
    return kept


def write_stub(path: Path, install_name: str) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '{install_name}'\n...\n"
        )


def stub_libraries(arguments: list[str], stubs: Path) -> None:
    """Makes a stub of every framework and system library that the linker is asked for and that is not there."""
    folders = [Path(argument[2:]) for argument in arguments if argument.startswith("-L")]
    for position, argument in enumerate(arguments):
        if argument in ("-framework", "-weak_framework"):
            name = arguments[position + 1]
            place = f"{name}.framework/{name}"
            write_stub(stubs / f"{place}.tbd", f"/System/Library/Frameworks/{place}")
        elif argument.startswith("-l") and argument[2:] not in OWN_LIBRARIES:
            name = argument[2:]
            if not any((folder / f"lib{name}.a").exists() for folder in folders):
                write_stub(stubs / f"lib{name}.tbd", f"/usr/lib/lib{name}.dylib")


def command(tool: str, stubs: Path, arguments: list[str]) -> list[str]:
    if tool == "ar":
        return ["ar", *arguments]
    compiler = ["c++" if tool == "c++" else "cc", "-target", "aarch64-macos", *without_target(arguments)]
    if tool == "link":
        stub_libraries(arguments, stubs)
        compiler += [f"-F{stubs}", f"-L{stubs}", "-Wl,-undefined,dynamic_lookup"]
    return compiler


def main() -> int:
    tool, stubs, *arguments = sys.argv[1:]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(Path(stubs).parent / "zig-cache")}
    environment["ZIG_LOCAL_CACHE_DIR"] = environment["ZIG_GLOBAL_CACHE_DIR"]
    zig = [sys.executable, "-m", "ziglang", *command(tool, Path(stubs), arguments)]
    return subprocess.run(zig, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
