"""Hash chain: each version names its parent and the SHA-256 of the parent's whole manifest file.

The format has no checksum, and a manifest with one flipped bit may read like another table. So every version that
this library writes records its parent in the properties of its transaction:

    lance_assets.parent = "41 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb22cd15d6c15b0f00a08"

Other engines carry the property along and ignore it. A value of another form is kept as a parent with version 0,
which no version can match. `transactions/apply.py` sets the property, `fsck/hash_chain.py` verifies it.
"""

import re
from dataclasses import dataclass

from lance_core.format.ids import Version

PARENT = "lance_assets.parent"
"""The transaction property that holds the parent hash."""
PARENT_BYTES_MAX = 256
"""The maximum number of bytes that the property adds to a transaction."""
_PATTERN = re.compile(r"([1-9][0-9]{0,18}) sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ParentHash:
    version: Version
    sha256: str

    @classmethod
    def of(cls, text: str) -> "ParentHash":
        """Parse a property value. A value of another form gets version 0.

        >>> ParentHash.of("written by another engine").version
        0
        """
        matched = _PATTERN.fullmatch(text)
        return cls(Version(int(matched[1])), matched[2]) if matched else cls(Version(0), text)

    def __str__(self) -> str:
        return f"{self.version} sha256:{self.sha256}" if self.version else self.sha256
