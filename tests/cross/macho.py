"""Reads of a Mach-O program what linking it here can prove: which machine it is for, and which symbols it leaves to be
found when it starts.

Formats: <mach-o/loader.h>, <mach-o/nlist.h>.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from toolchain import ToolchainError

MAGIC_64 = 0xFEEDFACF
CPU_ARM64 = 0x0100000C
EXECUTE = 2
LC_SYMTAB = 0x2
LC_MAIN = 0x80000028
# Of nlist_64: n_type's masks, and the ordinal in n_desc's high byte that means "any library that has it".
N_STAB, N_TYPE, N_UNDF, N_EXT = 0xE0, 0x0E, 0x00, 0x01
DYNAMIC_LOOKUP = 0xFE


class NotMachO(ToolchainError):
    """The file is not a program for macOS on Apple silicon; says in what way."""


@dataclass(frozen=True)
class Program:
    """What a linked program promises and needs."""

    has_entry: bool
    """Symbols that no library was named for, sorted."""
    unresolved: list[str]


def read(path: Path) -> Program:
    """Reads a linked program. Raises NotMachO when it is something else."""
    data = path.read_bytes()
    if len(data) < 32:
        raise NotMachO(f"{path} has only {len(data)} bytes")
    magic, cpu, _, kind, commands, _, _, _ = struct.unpack_from("<8I", data)
    if (magic, cpu, kind) != (MAGIC_64, CPU_ARM64, EXECUTE):
        raise NotMachO(f"{path} is no arm64 Mach-O program: magic {magic:#x}, cpu {cpu:#x}, type {kind}")
    offset, has_entry, unresolved = 32, False, []
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, offset)
        has_entry |= command == LC_MAIN
        if command == LC_SYMTAB:
            unresolved = dynamic_lookups(data, *struct.unpack_from("<3I", data, offset + 8))
        offset += size
    return Program(has_entry, unresolved)


def dynamic_lookups(data: bytes, symbols: int, count: int, strings: int) -> list[str]:
    found = []
    for index in range(count):
        name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, symbols + 16 * index)
        is_undefined = not kind & N_STAB and kind & N_TYPE == N_UNDF and kind & N_EXT
        if is_undefined and description >> 8 == DYNAMIC_LOOKUP:
            start = strings + name
            found.append(data[start : data.index(b"\0", start)].decode())
    return sorted(found)
