"""What system.sh says and does on machines made of stand-ins for their programs."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "system.sh"
# A Mac with everything: what each program prints. None is a program that fails.
COMPLETE = {
    "uname": 'case "$1" in -s) echo Darwin ;; -m) echo arm64 ;; esac',
    "sw_vers": "echo 15.4.1",
    "sysctl": "echo 0",
    "xcode-select": "echo /Applications/Xcode.app/Contents/Developer",
    "xcrun": "true",
    "cc": "true",
    "c++": "true",
    "make": "true",
    "cargo": "true",
    "cmake": "true",
}
# What the script itself calls.
SYSTEM = ("sh", "cut", "id", "ls")
# Debian as root with Rust and git, on which apt-get brings a clang that knows its own folder.
FRESH_DEBIAN = {
    "uname": "echo Linux",
    "id": "echo 0",
    "cargo": "true",
    "git": "true",
    "apt-get": """
here="${0%/*}"
for tool in llvm-cov-19 llvm-profdata-19 llvm-symbolizer-19 clang++-19; do
    printf '#!%s/sh\\necho %s/clang\\n' "$here" "$here" >"$here/$tool"
    chmod 755 "$here/$tool"
done
mkdir -p "$here/clang/lib/linux"
: >"$here/clang/lib/linux/libclang_rt.asan-x86_64.so"
""",
}


def setup_on_mac(changes: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
    """Runs `system.sh build` on a complete Mac with these changes."""
    return setup("build", COMPLETE | changes, SYSTEM)


def setup(
    kind: str, programs: dict[str, str | None], system: tuple[str, ...], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `system.sh kind` where only these programs are; None removes one. The variables are set for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, lines in programs.items():
            if lines is not None:
                (folder / program).write_text(f"#!/bin/sh\n{lines}\n")
                (folder / program).chmod(0o755)
        for program in system:
            (folder / program).symlink_to(shutil.which(program) or program)
        return subprocess.run(
            [folder / "sh", SCRIPT, kind], env={"PATH": name} | variables, capture_output=True, text=True
        )  # fmt: skip


class OnAMac(unittest.TestCase):
    def assert_asks_for(self, remedy: str, changes: dict[str, str | None]) -> None:
        outcome = setup_on_mac(changes)
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        self.assertIn(remedy, outcome.stderr)
        # One thing is missing, so one is asked for.
        self.assertEqual(len(re.findall(r"^  \S", outcome.stderr, re.M)), 1, outcome.stderr)

    def test_a_complete_mac_needs_nothing(self) -> None:
        outcome = setup_on_mac({})
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))

    def test_each_thing_missing_is_named_with_what_brings_it(self) -> None:
        self.assert_asks_for("Rust, by rustup", {"cargo": None})
        self.assert_asks_for("brew install cmake", {"cmake": None})
        self.assert_asks_for("macOS 14 or later", {"sw_vers": "echo 13.7"})
        self.assert_asks_for("xcodebuild -downloadComponent MetalToolchain", {"xcrun": "exit 72"})
        self.assert_asks_for("xcode-select --install", {"xcode-select": "exit 2", "cc": "exit 1", "cmake": None})
        self.assert_asks_for("sudo xcodebuild -license accept", {"cc": "exit 69"})

    def test_an_intel_mac_needs_nothing_of_mlx(self) -> None:
        intel = 'case "$1" in -s) echo Darwin ;; -m) echo x86_64 ;; esac'
        outcome = setup_on_mac({"uname": intel, "cmake": None, "xcrun": "exit 1", "sysctl": "exit 1"})
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))

    def test_a_terminal_under_rosetta_is_told_so(self) -> None:
        self.assert_asks_for("Open using Rosetta", {"sysctl": "echo 1"})


class WithAChosenPython(unittest.TestCase):
    def test_the_python_that_make_uses_is_the_one_that_is_checked(self) -> None:
        old_system_python = {"uname": "echo Darwin", "python3": "exit 1", "python3.13": "true"}
        outcome = setup("python", old_system_python, SYSTEM, PYTHON="python3.13")
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
        outcome = setup("python", old_system_python, SYSTEM)
        self.assertIn("Python 3.11 or later", outcome.stderr)
        too_old = {"uname": "echo Darwin", "python3": "true", "python3.9": "exit 1"}
        outcome = setup("python", too_old, SYSTEM, PYTHON="python3.9")
        self.assertIn("Python 3.11 or later", outcome.stderr)


class OnDebian(unittest.TestCase):
    def test_a_compiler_that_was_just_installed_is_found(self) -> None:
        outcome = setup("test", FRESH_DEBIAN, ("sh", "ls", "chmod", "mkdir"))
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""), outcome.stdout)

    def test_a_compiler_that_cannot_be_installed_is_asked_for(self) -> None:
        outcome = setup("test", FRESH_DEBIAN | {"apt-get": "exit 100"}, ("sh", "ls"))
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("apt-get install clang-19", outcome.stderr)


if __name__ == "__main__":
    unittest.main()
