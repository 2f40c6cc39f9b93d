"""The keys that a table's owner declares and nobody enforces: what the metadata of fields says about them.

A primary key is columns marked one by one, maybe with a place among each other; a clustering key is places alone. The
metadata decides, the wire repeats what follows from it. Once declared a key stays as it is. Never here: using a key.
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
    """A place among the columns of the key is enough, whatever the mark says."""
    return metadata.get(_PRIMARY, b"").lower() in _TRUE_TEXTS or _parse_number(metadata.get(_PRIMARY_POSITION)) is not None


def primary_position(metadata: Metadata) -> int:
    """From 1; 0 stands for the order of the schema."""
    return _parse_number(metadata.get(_PRIMARY_POSITION)) or 0


def clustering_position(metadata: Metadata) -> int:
    """From 1; 0 where the field is in no clustering key."""
    return _parse_number(metadata.get(_CLUSTERING_POSITION)) or 0


def check_update(before: Mapping[int, Metadata], updates: Mapping[int, Updates], after: Mapping[int, Metadata]) -> None:
    """All by field id. What is declared cannot be declared anew, not even in the same words or for another column; what
    is not yet has to make sense."""
    for kind, names, is_declared in (
        ("primary key", (_PRIMARY, _PRIMARY_POSITION), is_primary_key),
        ("clustering key", (_CLUSTERING_POSITION,), _is_clustered),
    ):
        reserved = [name for name in names if any(name.decode() in each for each in updates.values())]
        lost = [name for name in names for id, had in before.items() if name in had and name not in after[id]]
        if (reserved or lost) and any(map(is_declared, before.values())):
            raise InvalidInput(
                f"{(reserved + lost)[0].decode()} is reserved: the table's {kind} cannot be changed once set. Make a "
                "new table, or overwrite this one, to have another"
            )
        for id, update in updates.items():
            if any(update.get(name.decode()) is not None for name in names) and not is_declared(after[id]):
                raise InvalidInput(
                    f"what {reserved[0].decode()} would say declares no {kind}: it takes 'true', and a place a number "
                    "from 1 on"
                )


def _is_clustered(metadata: Metadata) -> bool:
    return _parse_number(metadata.get(_CLUSTERING_POSITION)) is not None


def _parse_number(text: bytes | None) -> int | None:
    """Of 32 bits, in decimal digits; anything else is no number."""
    digits = (text or b"").removeprefix(b"+")
    if not digits.isdigit() or len(digits.lstrip(b"0")) > _DIGITS_MAX:
        return None
    number = int(digits)
    return number if number <= _U32_MAX else None
