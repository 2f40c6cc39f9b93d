"""Manifest file framing: length-prefixed sections and a 16-byte footer.

    [dictionary values]      only in tables of format 0.1; the fields hold their positions
    [u32 n][index section]   only if the version has indices
    [u32 n][transaction]     only if the transaction is stored inline
    [u32 n][manifest]        starts at P
    i64 P, u16 major, u16 minor, "LANC"

Lengths and positions are checked against the size of the file before a byte is parsed.
"""

import struct
from dataclasses import dataclass

from lance_core.errors import Corrupt
from lance_core.limits import MANIFEST_BYTES

MAGIC = b"LANC"
FOOTER = struct.Struct("<qHH4s")
_LENGTH = struct.Struct("<I")
_MAJOR, _MINOR = 0, 2


@dataclass(frozen=True, slots=True)
class Offsets:
    """Start positions of the optional sections. Zero is a valid position; `None` means that the section is absent."""

    index_section: int | None
    transaction: int | None


def section_offsets(index_section: bytes | None, transaction: bytes | None, *, before: bytes = b"") -> Offsets:
    """Return the positions at which `frame_manifest` puts the sections. The manifest contains these positions, so
    they are computed before it is serialised."""
    position = len(before)
    offsets: list[int | None] = []
    for section in (index_section, transaction):
        offsets.append(None if section is None else position)
        position += 0 if section is None else _LENGTH.size + len(section)
    return Offsets(index_section=offsets[0], transaction=offsets[1])


def frame_manifest(
    index_section: bytes | None, transaction: bytes | None, manifest: bytes, *, before: bytes = b""
) -> bytes:
    """Return the bytes of a manifest file. `before` precedes all sections."""
    parts: list[bytes] = [before]
    for section in (index_section, transaction):
        if section is not None:
            parts += (_LENGTH.pack(len(section)), section)
    position = sum(map(len, parts))
    parts += (_LENGTH.pack(len(manifest)), manifest, FOOTER.pack(position, _MAJOR, _MINOR, MAGIC))
    return b"".join(parts)


def find_manifest_position(tail: bytes, *, size: int, path: str) -> int:
    """Return the position of the manifest section, from the last bytes of a file of `size` bytes."""
    if len(tail) < FOOTER.size:
        raise Corrupt(f"is {size} bytes long, which is too short for a manifest", path=path, field="footer")
    position, _major, _minor, magic = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != MAGIC:
        raise Corrupt(f"ends in {magic!r} instead of {MAGIC!r}", path=path, field="footer.magic")
    MANIFEST_BYTES.check(size, path=path)
    if not 0 <= position <= size - FOOTER.size - _LENGTH.size:
        raise Corrupt(
            f"its footer places the manifest at byte {position} of {size}", path=path, field="footer.position"
        )
    return int(position)


def extract_manifest_message(data: bytes, *, path: str) -> bytes:
    """Return the bytes of the manifest message in a whole file."""
    position = find_manifest_position(data[-FOOTER.size :], size=len(data), path=path)
    message = read_section(data, position, path=path, field="manifest")
    if position + _LENGTH.size + len(message) + FOOTER.size != len(data):
        raise Corrupt(
            f"the manifest has {len(message)} bytes, which do not reach up to the footer",
            path=path,
            field="manifest.length",
        )
    return message


def read_section(data: bytes, position: int, *, path: str, field: str) -> bytes:
    """Return the length-prefixed section that starts at `position`."""
    start = position + _LENGTH.size
    if position < 0 or start > len(data):
        raise Corrupt(f"section {field} is placed at byte {position} of {len(data)}", path=path, field=field)
    (length,) = _LENGTH.unpack_from(data, position)
    if start + length > len(data):
        raise Corrupt(f"section {field} is truncated: {length} bytes at {position}", path=path, field=field)
    return data[start : start + length]
