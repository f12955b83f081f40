"""What is read of a Mach-O program, on programs made here byte by byte."""

import struct
import tempfile
import unittest
from pathlib import Path

import link
import macho


def program(symbols: list[tuple[str, int, int]], entry: bool = True, cpu: int = macho.CPU_ARM64) -> bytes:
    """A program with symbols of (name, type, description)."""
    commands = [struct.pack("<2I2Q", macho.LC_MAIN, 24, 0, 0)] if entry else []
    start = 32 + sum(map(len, commands)) + 24
    names, table = b"\0", b""
    for name, kind, description in symbols:
        table += struct.pack("<IBBHQ", len(names), kind, 0, description, 0)
        names += name.encode() + b"\0"
    commands.append(struct.pack("<6I", macho.LC_SYMTAB, 24, start, len(symbols), start + len(table), len(names)))
    header = struct.pack(
        "<8I", macho.MAGIC_64, cpu, 0, macho.EXECUTE, len(commands), sum(map(len, commands)), 0, 0
    )  # fmt: skip
    return header + b"".join(commands) + table + names


LOOKED_UP, LIBSYSTEM = macho.DYNAMIC_LOOKUP << 8, 1 << 8
UNDEFINED, DEFINED, DEBUGGING = macho.N_EXT, macho.N_EXT | 0x0E, 0x64


class Linked(unittest.TestCase):
    def read(self, data: bytes) -> macho.Program:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program"
            path.write_bytes(data)
            return macho.read(path)

    def test_only_symbols_without_a_library_are_unresolved(self) -> None:
        symbols = [
            ("_b_missing", UNDEFINED, LOOKED_UP),
            ("_a_missing", UNDEFINED, LOOKED_UP),
            ("_malloc", UNDEFINED, LIBSYSTEM),
            ("_main", DEFINED, 0),
            ("a_debugging_note", DEBUGGING, LOOKED_UP),
        ]
        self.assertEqual(self.read(program(symbols)), macho.Program(True, ["_a_missing", "_b_missing"]))

    def test_a_symbol_of_ours_that_is_missing_is_a_fault(self) -> None:
        apples = ["_CFRelease", "_OBJC_CLASS_$_NSObject", "_mlx_array_new"]
        for missing in ["_onig_new", "_ring_core_aes", "__RNvC6linnet4main", "__ZN6linnet4main17h0E"]:
            found = link.faults(macho.Program(True, sorted([*apples, missing])))
            self.assertEqual(found, [f"{missing} is defined nowhere, and is neither Apple's nor MLX's"])
        self.assertEqual(link.faults(macho.Program(True, apples)), [])

    def test_a_program_without_an_entry_or_for_another_machine_is_a_fault(self) -> None:
        self.assertEqual(link.faults(self.read(program([], entry=False))), ["it has no entry point"])
        with self.assertRaises(macho.NotMachO):
            self.read(program([], cpu=0x01000007))
        with self.assertRaises(macho.NotMachO):
            self.read(b"\x7fELF" + b"\0" * 60)


if __name__ == "__main__":
    unittest.main()
