"""Leaves one GPU architecture in a shared library, so that it packs small.

Device code for all architectures lies in the section .nv_fatbin: containers of entries, one per architecture, each an
ELF image or PTX. The code of other architectures is overwritten with zeros where it lies: nothing moves, the driver
picks an entry by its header, and zeros compress to nothing. Symbols that only a debugger reads go the same way.

Layout, as the public headers fatbinary_section.h and cuobjdump's output show it: a container begins with the magic
0xBA55ED50, u16 version, u16 header size, u64 size of what follows; an entry with u16 kind (1 PTX, 2 ELF), u16 version,
u32 header size, u64 payload size, and at byte 28 u32 architecture.
"""

import struct
from pathlib import Path

MAGIC = 0xBA55ED50


class NotThinned(Exception):
    """The library is not laid out as expected, or lacks the architecture."""


def sections(data: bytes) -> dict[str, tuple[int, int]]:
    """Name -> (offset, size) of a 64-bit ELF file's sections."""
    if data[:5] != b"\x7fELF\x02":
        raise NotThinned("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", data, table + index * entry_size) for index in range(count)]
    names_offset = entries[names][4]

    def name(offset: int) -> str:
        start = names_offset + offset
        return data[start : data.index(b"\0", start)].decode()

    return {name(entry[0]): (entry[4], entry[5]) for entry in entries}


def thin(source: Path, destination: Path, architecture: int) -> dict[int, int]:
    """Writes `source` with only `architecture`'s code; returns how many bytes each architecture had."""
    data = bytearray(source.read_bytes())
    found = sections(bytes(data))
    if ".nv_fatbin" not in found:
        raise NotThinned(f"{source} holds no device code")
    position, size = found[".nv_fatbin"]
    end, sizes = position + size, {}
    while position < end:
        (magic,) = struct.unpack_from("<I", data, position)
        if magic != MAGIC:
            # Containers are aligned; what lies between is padding.
            position += 8
            continue
        header, content = struct.unpack_from("<HQ", data, position + 6)
        entry, last = position + header, position + header + content
        while entry < last:
            entry_header, payload = struct.unpack_from("<IQ", data, entry + 4)
            (entry_architecture,) = struct.unpack_from("<I", data, entry + 28)
            if entry_header < 32 or entry + entry_header + payload > last:
                raise NotThinned(f"{source}: an entry at {entry:#x} reaches past its container")
            sizes[entry_architecture] = sizes.get(entry_architecture, 0) + payload
            if entry_architecture != architecture:
                start = entry + entry_header
                data[start : start + payload] = bytes(payload)
            entry += entry_header + payload
        position = last
    if not sizes.get(architecture):
        raise NotThinned(f"{source} has no code for sm_{architecture}, only for {sorted(sizes)}")
    for name in (".symtab", ".strtab"):
        if name in found:
            start, length = found[name]
            data[start : start + length] = bytes(length)
    destination.write_bytes(data)
    return sizes
