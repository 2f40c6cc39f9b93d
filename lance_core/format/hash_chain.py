"""Which bytes a version was made upon: the number of its parent and the SHA-256 of the parent's whole manifest file.

The format has no checksum, and a manifest with one bit changed can read like another table. So every version of ours
tells, in the properties of its transaction, what its parent was:

    lance_assets.parent = "41 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb22cd15d6c15b0f00a08"

Other engines keep it, and read past it. What does not have this form is kept as it is, as the parent that no version
can be. Who sets it: `transactions/apply.py`. Who asks: `fsck/hash_chain.py`.
"""

import re
from dataclasses import dataclass

from lance_core.format.ids import Version

PARENT = "lance_assets.parent"
PARENT_BYTES_MAX = 256
"""What it adds to a transaction, at most."""
_PATTERN = re.compile(r"([1-9][0-9]{0,18}) sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ParentHash:
    version: Version
    sha256: str

    @classmethod
    def of(cls, text: str) -> "ParentHash":
        """
        >>> Parent.of("somebody else's").version
        0
        """
        matched = _PATTERN.fullmatch(text)
        return cls(Version(int(matched[1])), matched[2]) if matched else cls(Version(0), text)

    def __str__(self) -> str:
        return f"{self.version} sha256:{self.sha256}" if self.version else self.sha256
