#!/usr/bin/env python3
"""Runs the kernels' tests as Arm code, emulated: every instruction-set level of theirs, on a processor that has all.

Takes cargo's arguments for the tests: `arm.py matmul` runs those whose name contains that.
"""

import json
import subprocess
import sys

import toolchain
from toolchain import ARM, BIN, ROOT

COMPILER = "aarch64-linux-gnu-gcc"
# Debian's cross compiler keeps its libraries here.
EMULATOR = ["qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"]
# The kernels keep their own level of optimization: it is the code of a release that is to be tested.
PROFILE = {"profile.dev.debug": "false"}


def main() -> int:
    absent = toolchain.missing()
    if absent:
        raise toolchain.ToolchainError(f"the tests for Arm need a compiler: {absent}")
    ARM.fetch()
    tools = {f"target.{ARM.triple}.linker": json.dumps(COMPILER), f"target.{ARM.triple}.runner": json.dumps(EMULATOR)}
    settings = ARM.settings("build", {**PROFILE, **tools})
    command = [str(BIN / "cargo"), "test", "--package=linnet-kernels", "--lib", *settings]
    # Some tests pass only on a processor with everything, which here is emulated.
    arguments = ["--", "--include-ignored", *sys.argv[1:]]
    return subprocess.run([*command, *arguments], cwd=ROOT, env=ARM.environment()).returncode


if __name__ == "__main__":
    toolchain.run_or_exit(main)
