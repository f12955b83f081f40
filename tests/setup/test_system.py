"""What system.sh says on a Mac that lacks something, on a Mac made of stand-ins for its programs."""

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
SYSTEM = ("sh", "cut", "id")


def setup_on_mac(changes: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
    """Runs `system.sh build` where only these programs are; None removes one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, lines in (COMPLETE | changes).items():
            if lines is not None:
                (folder / program).write_text(f"#!/bin/sh\n{lines}\n")
                (folder / program).chmod(0o755)
        for program in SYSTEM:
            (folder / program).symlink_to(shutil.which(program) or program)
        return subprocess.run(
            [folder / "sh", SCRIPT, "build"], env={"PATH": name}, capture_output=True, text=True
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


if __name__ == "__main__":
    unittest.main()
