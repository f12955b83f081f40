#!/usr/bin/env python3
"""Type-checks and lints the workspace for macOS on Apple silicon. Warnings are errors.

On a Mac that is clippy. On Linux it is clippy of the toolchain that toolchain.py describes; where there is none, the
check says so and lets it pass. Debian has one: tests/setup/system.sh sees to it that it never passes there.
"""

import subprocess
import sys
from pathlib import Path

import toolchain
from toolchain import BIN, MACOS, ROOT

# Nothing here is ever run, so nothing is optimized. The quotes are part of the key.
PROFILE = {"profile.dev.opt-level": "0", "profile.dev.debug": "false", 'profile.dev.package."*".opt-level': "0"}
# MLX cannot be built here; its bindings, which `make mlx` generates, stand in for what its build script would make.
# They are named on the command line: in cargo's settings they would replace the real build on a Mac.
BINDINGS = MACOS.folder().parent / "mlx" / "gen"
MLX = {f"target.{MACOS.triple}.mlx.rustc-env.OUT_DIR": f'"{BINDINGS}"'}
LINTS = ["--", "-D", "warnings"]


def environment() -> dict[str, str]:
    """The clean environment, with a C compiler that only pretends: what it makes is never linked."""
    here = Path(__file__).resolve().parent
    return {
        **MACOS.environment(),
        MACOS.variable("CC"): str(here / "fake_cc.sh"),
        MACOS.variable("CXX"): str(here / "fake_cc.sh"),
        MACOS.variable("AR"): str(here / "fake_ar.sh"),
        # Any folder keeps build scripts from asking Xcode where its own is.
        "SDKROOT": str(MACOS.folder()),
    }


def command(*packages: str) -> list[str]:
    """The check of the packages named, or of all."""
    chosen = [f"--package={package}" for package in packages] or ["--workspace", "--all-features"]
    settings = MACOS.settings("check", {**PROFILE, **MLX})
    return [str(BIN / "cargo"), "clippy", *chosen, "--all-targets", *settings, *LINTS]


def main() -> int:
    if sys.platform == "darwin":
        return subprocess.run(
            ["cargo", "clippy", "--workspace", "--all-targets", "--locked", *LINTS], cwd=ROOT
        ).returncode
    absent = toolchain.missing()
    if absent:
        print(
            f"\nSKIPPED: nothing was checked for macOS: {absent}. The check needs Rust {toolchain.oldest_allowed()} or\n"
            "later in /usr/bin with clippy and the standard library's vendored sources, as Debian's packages rustc-web\n"
            "cargo-web rust-web-src rust-web-clippy bring them.\n",
            file=sys.stderr,
        )
        return 0
    if not (BINDINGS / "bindings.rs").is_file():
        raise toolchain.ToolchainError(f"{BINDINGS} holds no bindings of MLX; `make mlx` generates them")
    MACOS.fetch()
    return subprocess.run(command(), cwd=ROOT, env=environment()).returncode


if __name__ == "__main__":
    toolchain.run_or_exit(main)
