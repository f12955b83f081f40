#!/usr/bin/env python3
"""Checks what no compiler checks, on the files that git tracks (or would track).

1. No file of code or prose is longer than 800 lines, unless long_files.txt names it with a reason.
2. No file names a place on somebody's machine: a home folder, a build folder outside the repository.

Prints one line for each fault and exits 1 if there is any.
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 800
CHECKED_SUFFIXES = {
    ".c", ".cc", ".cpp", ".css", ".h", ".html", ".js", ".m", ".md", ".metal", ".mk", ".mm", ".plist", ".py", ".rs",
    ".sh", ".svelte", ".swift", ".toml", ".ts", ".txt", ".yml", ".yaml",
}
CHECKED_NAMES = {"Makefile", "run"}
# Data may be long, but names no machine either.
DATA_SUFFIXES = {".json"}
# Placeholders that documentation may use for a reader's own folder.
PLACEHOLDER_USERS = {"me", "you", "user", "NAME", "USER", "name"}
# An absolute path that starts at a home folder, at root's, or at a scratch folder under /tmp or /work; a longer
# path that merely contains such a part (a URL, a path inside an archive) does not count.
MACHINE_PATH = re.compile(r"(?<![\w./}\])-])/(?:(?:home|Users)/(?P<user>[\w.-]+)|root(?=/)|work(?=/)|tmp/\w(?=/))")


def tracked_files(root: Path) -> list[Path]:
    """Files that git tracks or would track, but not those deleted in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    paths = (root / name.decode() for name in listed.split(b"\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def read_allowed(path: Path) -> dict[str, str]:
    """Reads `PATH: reason` lines."""
    allowed = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.partition(":")
        if not reason.strip():
            raise SystemExit(f"{path}:{number}: give the reason after a colon")
        allowed[name.strip()] = reason.strip()
    return allowed


def is_checked(path: Path) -> bool:
    return path.suffix in CHECKED_SUFFIXES | DATA_SUFFIXES or path.name in CHECKED_NAMES


def faults(root: Path, files: list[Path], allowed_long: dict[str, str]) -> list[str]:
    """Every fault as `path:line: what is wrong and what to do`."""
    found = []
    names = {path.relative_to(root).as_posix() for path in files}
    for name in sorted(set(allowed_long) - names):
        found.append(f"{name}: named in long_files.txt but not there; remove the line")
    for path in files:
        if not is_checked(path):
            continue
        name = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        is_long = len(lines) > MAX_LINES and path.suffix not in DATA_SUFFIXES
        if is_long and name not in allowed_long:
            found.append(f"{name}: {len(lines)} lines, more than {MAX_LINES}; it is more than one concept: split it")
        if not is_long and name in allowed_long:
            found.append(f"{name}: no longer than {MAX_LINES} lines; remove it from long_files.txt")
        for number, line in enumerate(lines, 1):
            for match in MACHINE_PATH.finditer(line):
                if match["user"] not in PLACEHOLDER_USERS:
                    found.append(f"{name}:{number}: names a place on one machine ({match[0]}); use a relative path")
    return found


def main() -> int:
    root = Path(__file__).resolve().parents[2]
    files = tracked_files(root)
    found = faults(root, files, read_allowed(Path(__file__).with_name("long_files.txt")))
    for fault in found:
        print(fault)
    checked = sum(map(is_checked, files))
    print(f"lint: {checked} files, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
