"""Declared keys: the primary key and clustering key that a table's owner declares in field metadata, without
enforcement.

A primary key is a set of fields that are marked one by one, optionally with their order; a clustering key consists of
positions only. The metadata is authoritative, the protobuf fields repeat what follows from it. A declared key cannot
be changed. This module never uses a key.
"""

from collections.abc import Mapping

from lance_core.errors import InvalidInput

_PRIMARY = b"lance-schema:unenforced-primary-key"
_PRIMARY_POSITION = b"lance-schema:unenforced-primary-key:position"
_CLUSTERING_POSITION = b"lance-schema:unenforced-clustering-key:position"
_TRUE_TEXTS = frozenset({b"true", b"1", b"on", b"yes", b"y"})
_U32_MAX = 2**32 - 1
_DIGITS_MAX = 10

Metadata = Mapping[bytes, bytes]
Updates = Mapping[str, str | None]


def is_primary_key(metadata: Metadata) -> bool:
    """Return whether a field is part of the primary key. A position in the key is enough, whatever the mark says."""
    return bool(metadata) and (
        metadata.get(_PRIMARY, b"").lower() in _TRUE_TEXTS or _parse_number(metadata.get(_PRIMARY_POSITION)) is not None
    )


def primary_position(metadata: Metadata) -> int:
    """Return the position in the primary key, from 1; 0 means the order of the schema."""
    return _parse_number(metadata.get(_PRIMARY_POSITION)) or 0


def clustering_position(metadata: Metadata) -> int:
    """Return the position in the clustering key, from 1; 0 means that the field is not part of it."""
    return _parse_number(metadata.get(_CLUSTERING_POSITION)) or 0


def check_update(before: Mapping[int, Metadata], updates: Mapping[int, Updates], after: Mapping[int, Metadata]) -> None:
    """Check an update of field metadata; all arguments are by field id. A declared key cannot be declared again, not
    even with the same values or for another column. A new declaration has to be valid."""
    for kind, names, is_declared in (
        ("primary key", (_PRIMARY, _PRIMARY_POSITION), is_primary_key),
        ("clustering key", (_CLUSTERING_POSITION,), _is_clustered),
    ):
        reserved = [name for name in names if any(name.decode() in entries for entries in updates.values())]
        lost = [name for name in names for id, metadata in before.items() if name in metadata and name not in after[id]]
        if (reserved or lost) and any(map(is_declared, before.values())):
            raise InvalidInput(
                f"{(reserved + lost)[0].decode()} is reserved: the table's {kind} cannot be changed once set. Create a "
                "new table, or overwrite this one, to declare another key"
            )
        for id, update in updates.items():
            if any(update.get(name.decode()) is not None for name in names) and not is_declared(after[id]):
                raise InvalidInput(
                    f"the value of {reserved[0].decode()} declares no {kind}: set the key to 'true', and a position "
                    "to a number from 1"
                )


def _is_clustered(metadata: Metadata) -> bool:
    return _parse_number(metadata.get(_CLUSTERING_POSITION)) is not None


def _parse_number(text: bytes | None) -> int | None:
    """Parse decimal digits as an unsigned 32-bit number. Return `None` for any other text."""
    digits = (text or b"").removeprefix(b"+")
    if not digits.isdigit() or len(digits.lstrip(b"0")) > _DIGITS_MAX:
        return None
    number = int(digits)
    return number if number <= _U32_MAX else None
