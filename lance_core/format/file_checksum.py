"""File checksum: the size and the hash of a file, as the process that wrote it measured them.

The hash is XXH3 with 64 bits. It detects damage; it is no defence against a person who replaces a file on purpose.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import xxhash


class Hasher(Protocol):
    """Hash of bytes that arrive in parts."""

    def update(self, data: bytes | memoryview, /) -> object: ...

    def intdigest(self) -> int: ...


def new_hasher() -> Hasher:
    return xxhash.xxh3_64()


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """Size and hash of a file."""

    size: int
    xxh3: int | None
    """`None` if the hash is unknown: its writer could not read the file back cheaply."""

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the checksum of a file with these contents.

        >>> FileChecksum.of(b"")
        FileChecksum(size=0, xxh3=3244421341483603138)
        """
        return cls(len(data), xxhash.xxh3_64_intdigest(data))
