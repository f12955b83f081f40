"""A check that could not fail would prove nothing: faults that only a Mac's compiler sees are planted in a copy of the
workspace, and the check must find each."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import macos
import toolchain
from toolchain import MACOS, ROOT

PLANTED_IN = Path("kernels/cpu/lib.rs")
PACKAGE = "linnet-kernels"


def copy_workspace(target: Path) -> None:
    """What git would commit: the compiler may read any file that a source names."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


@unittest.skipIf(sys.platform != "linux" or toolchain.missing(), "no compiler for the check here")
class PlantedFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.copy = MACOS.folder() / "self-test"
        copy_workspace(cls.copy)
        cls.source = (cls.copy / PLANTED_IN).read_text()
        MACOS.fetch()

    def check_with(self, planted: str) -> subprocess.CompletedProcess[str]:
        """Runs the check, as `make check-macos` does, over one crate of the copy with something added to it."""
        (self.copy / PLANTED_IN).write_text(f"{self.source}\n{planted}\n")
        return subprocess.run(
            macos.command(PACKAGE), cwd=self.copy, env=macos.environment(), capture_output=True, text=True
        )

    def assert_finds(self, planted: str, message: str) -> None:
        outcome = self.check_with(planted)
        self.assertNotEqual(outcome.returncode, 0, "the planted fault passed")
        self.assertIn(message, outcome.stderr)
        self.assertIn(str(PLANTED_IN), outcome.stderr)

    def test_what_is_right_or_concerns_only_linux_passes(self) -> None:
        outcome = self.check_with('#[cfg(target_os = "linux")]\nfn planted() -> u32 { "a type error on Linux" }')
        self.assertEqual(outcome.returncode, 0, outcome.stderr)

    def test_a_type_error_that_only_a_mac_sees_is_found(self) -> None:
        for condition in ('target_os = "macos"', 'target_arch = "aarch64"', 'target_vendor = "apple"'):
            with self.subTest(condition):
                self.assert_finds(f'#[cfg({condition})]\nfn planted() -> u32 {{ "no number" }}', "error[E0308]")

    def test_a_type_error_in_a_macs_own_unit_test_is_found(self) -> None:
        planted = '#[cfg(all(test, target_os = "macos"))]\nmod planted { #[test] fn it() { let _: u32 = ""; } }'
        self.assert_finds(planted, "error[E0308]")

    def test_a_warning_that_only_a_mac_sees_is_an_error(self) -> None:
        self.assert_finds('#[cfg(target_os = "macos")]\nfn planted() {}', "function `planted` is never used")

    def test_a_lint_of_clippy_that_only_a_mac_sees_is_an_error(self) -> None:
        planted = '#[cfg(target_os = "macos")]\n/// Planted.\npub fn planted(x: Option<u8>) -> u8 { x.unwrap() }'
        self.assert_finds(planted, "used `unwrap()` on an `Option` value")


class MissingToolchain(unittest.TestCase):
    def test_what_is_missing_is_named(self) -> None:
        self.assertEqual(toolchain.missing(Path("nowhere")), "there is no nowhere/rustc")

    def test_an_old_compiler_is_refused_with_both_versions(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for program in ("rustc", "cargo", "cargo-clippy", "clippy-driver"):
                (folder / program).write_text("#!/bin/sh\necho 'release: 1.63.0'\n")
                (folder / program).chmod(0o755)
            expected = f"{folder / 'rustc'} is 1.63.0, older than Cargo.toml's {toolchain.oldest_allowed()}"
            self.assertEqual(toolchain.missing(folder), expected)


if __name__ == "__main__":
    unittest.main()
