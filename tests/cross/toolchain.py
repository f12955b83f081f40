"""A compiler for machines that are not here: the distribution's Rust in /usr/bin, which comes with the standard
library's sources and all they depend on, and standard libraries for other machines built from them once.

rustup's toolchain cannot serve: a standard library for another machine has to be downloaded for it, and its sources
come without their dependencies. The distribution's stands behind rustup's on PATH, so nothing else uses it.

Run as a program, says what is missing and exits 1 if anything is.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path("/usr/bin")
# Below the compiler's prefix, as Debian's rust-web-src and rustup's rust-src put it.
SOURCES = "lib/rustlib/src/rust/library"
PATH = "/usr/bin:/bin"


class ToolchainError(Exception):
    """What is missing or failed, and what to do."""


@dataclass(frozen=True)
class Machine:
    """A kind of machine to build for, and the folder below the target folder that holds all about it."""

    folder_name: str
    triple: str

    def folder(self) -> Path:
        """Nothing in it is shared with other builds."""
        return (ROOT / os.environ.get("CARGO_TARGET_DIR", "target")).resolve() / self.folder_name

    def variable(self, name: str) -> str:
        """The variable by which build scripts look for a tool for this machine, such as CC."""
        return f"{name}_{self.triple.replace('-', '_')}"

    def environment(self) -> dict[str, str]:
        """An environment in which only what is named here decides the outcome."""
        kept = {name: os.environ[name] for name in ("CARGO_BUILD_JOBS", "TERM") if name in os.environ}
        return {"HOME": str(self.folder()), "PATH": PATH, "CARGO_HOME": str(self.cargo_home()), **kept}

    def cargo_home(self) -> Path:
        """A home for cargo without the user's settings, which may name compilers and flags for other builds; it shares
        the downloaded crates, and the locks that guard them, with the user's."""
        users = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
        home = self.folder() / "cargo"
        home.mkdir(parents=True, exist_ok=True)
        for name in ("registry", "git", ".package-cache", ".package-cache-mutate"):
            link = home / name
            if not link.is_symlink() or link.readlink() != users / name:
                link.unlink(missing_ok=True)
                link.symlink_to(users / name)
        return home

    def settings(self, work: str, config: dict[str, str]) -> list[str]:
        """What every cargo command for this machine is given: the target, its standard library, a build folder for this
        kind of work, and settings as cargo's configuration writes them."""
        config = {**config, f"target.{self.triple}.rustflags": f'["--sysroot", "{self.sysroot()}"]'}
        return [
            "--locked", "--offline", "--target", self.triple, "--target-dir", str(self.folder() / work),
            *(f"--config={key}={value}" for key, value in config.items()),
        ]  # fmt: skip

    def fetch(self) -> None:
        """Downloads with the user's own cargo and network settings, so that all that follows works offline."""
        subprocess.run(["cargo", "fetch", "--quiet", "--locked", "--target", self.triple], cwd=ROOT, check=True)

    def sysroot(self) -> Path:
        """The folder for rustc's `--sysroot`: the standard library, built if this compiler has none yet.

        Raises ToolchainError when the build fails.
        """
        # The number is that of the recipe below.
        key = hashlib.sha256(f"1 {rustc_version()}".encode()).hexdigest()[:16]
        finished = self.folder() / f"sysroot-{key}"
        if not finished.is_dir():
            print(f"building the standard library for {self.triple}, once", flush=True)
            scratch = self.folder() / "sysroot-build"
            shutil.rmtree(scratch, ignore_errors=True)
            self.build_standard_library(scratch)
            libraries = scratch / "sysroot/lib/rustlib" / self.triple / "lib"
            libraries.mkdir(parents=True)
            for library in (scratch / "target" / self.triple / "release/deps").glob("*.rlib"):
                library.rename(libraries / library.name)
            for outdated in self.folder().glob("sysroot-????????????????"):
                shutil.rmtree(outdated)
            (scratch / "sysroot").rename(finished)
            shutil.rmtree(scratch)
        return finished

    def build_standard_library(self, scratch: Path) -> None:
        """Builds it as cargo does for `-Zbuild-std`, of which only the libraries are wanted."""
        crate = scratch / "crate"
        (crate / "src").mkdir(parents=True)
        (crate / "src/lib.rs").touch()
        (crate / "Cargo.toml").write_text('[package]\nname = "sysroot"\nedition = "2024"\n[workspace]\n')
        built = subprocess.run(
            [
                BIN / "cargo", "build", "--quiet", "--offline", "--release", "--target", self.triple,
                "-Zbuild-std=std,panic_abort,test",
                # Backtraces would need four more crates, a sixth of the time.
                "-Zbuild-std-features=panic-unwind",
                "--config", 'source.crates-io.replace-with="standard-library"',
                "--config", f'source.standard-library.directory="{standard_library_sources() / "vendor"}"',
                "--target-dir", scratch / "target",
            ],
            cwd=crate,
            env={
                **self.environment(),
                "CARGO_HOME": str(scratch / "cargo"),
                # Lets a released compiler build its own standard library; nothing else is built with it.
                "RUSTC_BOOTSTRAP": "1",
                "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
            },
        )  # fmt: skip
        if built.returncode != 0:
            raise ToolchainError(f"the standard library for {self.triple} did not build; its errors stand above")


MACOS = Machine("macos", "aarch64-apple-darwin")
ARM = Machine("arm", "aarch64-unknown-linux-gnu")


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def oldest_allowed() -> str:
    """The oldest Rust that the workspace allows."""
    found = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text(), re.M)
    if found is None:
        raise ToolchainError("Cargo.toml states no rust-version")
    return found[1]


def missing(folder: Path = BIN) -> str | None:
    """What of the toolchain is not there; None when it can be used."""
    for name in ("rustc", "cargo", "cargo-clippy", "clippy-driver"):
        if not os.access(folder / name, os.X_OK):
            return f"there is no {folder / name}"
    release = re.search(r"^release: ([\d.]+)", rustc_version(folder), re.M)
    if release is None or version(release[1]) < version(oldest_allowed()):
        found = release[1] if release else "of an unknown version"
        return f"{folder / 'rustc'} is {found}, older than Cargo.toml's {oldest_allowed()}"
    if not (standard_library_sources(folder) / "vendor").is_dir():
        return f"the standard library's sources are not in {standard_library_sources(folder)}"
    return None


def rustc_version(folder: Path = BIN) -> str:
    """What `rustc -vV` says: it names the very build of the compiler."""
    return subprocess.run([folder / "rustc", "-vV"], check=True, capture_output=True, text=True).stdout


def standard_library_sources(folder: Path = BIN) -> Path:
    prefix = subprocess.run([folder / "rustc", "--print", "sysroot"], check=True, capture_output=True, text=True)
    return Path(prefix.stdout.strip()) / SOURCES


def run_or_exit(action) -> None:
    """Runs a program's main function and exits with what it returns; failures are said without a traceback."""
    try:
        sys.exit(action())
    except ToolchainError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))} failed")


if __name__ == "__main__":
    sys.exit(missing())
