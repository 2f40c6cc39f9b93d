"""Resource limits: the caps on what an untrusted table may cost a reader, each with its reason.

A few bytes can expand to more memory than a machine has: empty messages, runs of deleted rows, compressed zeros. So
the reader checks what data will cost before it reads it, and does not rely on the sizes that the table declares. Each
cap is far above what Lance writes. A user who trusts a table beyond a cap raises it in the environment, for this
process and for its workers:

    LANCE_ASSETS_MANIFEST_BYTES_MAX=1073741824

This module reads no table. Exceeding a cap raises an `Unsupported` that names it. A commit checks the same caps before
it puts a version (`check_caps` in `commit/loop.py`), so no process commits what it would refuse to read. `read_whole`
in `storage/store.py` applies the caps on files, and `format/size_guard.py` those on messages.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lance_core.errors import InvalidInput, Unsupported

_MIB = 1024 * 1024


class CapExceeded(Unsupported):
    """A cap is exceeded. A commit reports it as a version that it did not create."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Cap on one resource. The environment variable `variable` overrides its default."""

    name: str
    maximum: int
    unit: str
    """Noun phrase for what is counted, for messages."""

    @classmethod
    def from_environment(
        cls, name: str, default: int, unit: str, environment: Mapping[str, str] = os.environ
    ) -> "Limit":
        """Return the limit with its maximum from the environment, or with the default.

        >>> Limit.from_environment("ROWS", 10, "rows", {"LANCE_ASSETS_ROWS_MAX": "12"}).maximum
        12
        """
        limit = cls(name, default, unit)
        configured = environment.get(limit.variable)
        if configured is None:
            return limit
        if not (configured.isascii() and configured.isdecimal() and int(configured)):
            raise InvalidInput(
                f"the environment variable {limit.variable} must be a positive integer (a number of {unit}), "
                f"not {configured!r}"
            )
        return cls(name, int(configured), unit)

    @property
    def variable(self) -> str:
        return f"LANCE_ASSETS_{self.name}_MAX"

    def check(self, count: int, *, path: str) -> None:
        if count > self.maximum:
            raise self.exceeded(f"{count:,}", path=path)

    def exceeded(self, count: str, *, path: str) -> CapExceeded:
        return CapExceeded(
            f"{path} has {count} {self.unit}, and no more than {self.maximum:,} are read. If you trust this table, set "
            f"the environment variable {self.variable} to the number that it needs"
        )


MANIFEST_BYTES = Limit.from_environment("MANIFEST_BYTES", 256 * _MIB, "bytes in a manifest file")
"""A million fragments take up to half of it: 82 bytes each, or 146 with stable row ids and deleted rows. Parsed, they
take 360 or 460 MB."""
TRANSACTION_BYTES = Limit.from_environment("TRANSACTION_BYTES", 256 * _MIB, "bytes in a transaction")
"""The first write of a table lists all of its fragments, as its manifest does."""
DELETION_BYTES = Limit.from_environment("DELETION_BYTES", 512 * _MIB, "bytes in a deletion file")
"""Size of a bitmap over four billion rows that does not compress."""
FILE_METADATA_BYTES = Limit.from_environment(
    "FILE_METADATA_BYTES", 256 * _MIB, "bytes of metadata at the end of a data file"
)
"""Applies to data files of format 0.1. The codec reads the metadata of newer files."""
REFERENCE_BYTES = Limit.from_environment("REFERENCE_BYTES", _MIB, "bytes in the file of a tag, a branch or a clone")
INTENT_BYTES = Limit.from_environment(
    "INTENT_BYTES", 128 * _MIB, "bytes in the record of an intent or of work in progress"
)
"""The record lists data files; this size holds two million of them."""
INGESTED_BYTES = Limit.from_environment("INGESTED_BYTES", 512 * _MIB, "bytes in a record of ingested files")
"""A record takes about two hundred bytes a file, and as many in memory."""
LINEAGE_BYTES = Limit.from_environment("LINEAGE_BYTES", 64 * _MIB, "bytes in one sequence of row ids or row versions")
LINEAGE_BYTES_TOGETHER = Limit.from_environment(
    "LINEAGE_BYTES_TOGETHER", 256 * _MIB, "bytes of row id and row version sequences in separate files"
)
INDEX_DETAILS_BYTES = Limit.from_environment(
    "INDEX_DETAILS_BYTES", 256 * _MIB, "bytes in the details of a fragment reuse index"
)

JSON_PARTS = Limit.from_environment("JSON_PARTS", 2_100_000, "commas and brackets in a JSON record")
"""An empty object is written with three bytes and takes 64 in memory. Such a record lists names, up to two million."""
SMALL_PARTS = Limit.from_environment("SMALL_PARTS", 2_000_000, "parts of less than 16 bytes in one message")
"""Each becomes an object of about 130 bytes, however few bytes encode it; a fragment has two or three. A large message
may have more, in proportion to its bytes (`format/size_guard.py`)."""
NUMBERS = Limit.from_environment("NUMBERS", 128 * _MIB, "numbers in the arrays of one message")
"""An array element can be encoded in one byte. It takes four bytes in memory, or eight, and then counts twice; while it
is read, it takes twice that. A fragment has two numbers for each column: the 45 million columns of 9,000 fragments with
5,000 columns each take 900 MB."""
FRAGMENTS = Limit.from_environment("FRAGMENTS", 2_000_000, "fragments")
FIELDS = Limit.from_environment("FIELDS", 100_000, "fields, nested ones included")
"""Each becomes a Python object and an Arrow field."""
INDICES = Limit.from_environment("INDICES", 100_000, "index segments")
INDEX_KEYS = Limit.from_environment(
    "INDEX_KEYS", 4_000_000, "distinct values in an index that has a set of rows for each value"
)
"""Each takes a kilobyte while such an index is built, and about a hundred bytes while it is open."""
FILES_OF_A_FRAGMENT = Limit.from_environment("FILES_OF_A_FRAGMENT", 10_000, "data files in one fragment")
"""Each column added since the last compaction adds one."""
DELETED_ROWS = Limit.from_environment("DELETED_ROWS", 2**26, "deleted rows in one fragment")
"""Decoded to numbers, they take four bytes each."""
OVERLAID_ROWS = Limit.from_environment("OVERLAID_ROWS", 2**26, "rows that one overlay file covers")
DELETED_ROWS_AS_ARROW = Limit.from_environment("DELETED_ROWS_AS_ARROW", 2**22, "deleted rows in one Arrow file")
"""Lance writes such files for 5,000 rows at most, and zstd compresses half a gigabyte to 16 KB."""

DECODER_BYTES = Limit.from_environment(
    "DECODER_BYTES", 4096 * _MIB, "bytes of memory in a process that decodes untrusted files"
)
"""65,536 rows of a vector of 4,096 numbers take a gigabyte."""
DECODER_SECONDS = Limit.from_environment(
    "DECODER_SECONDS", 120, "seconds in which a process that decodes untrusted files answers"
)
"""An answer is one batch. A damaged dictionary took 20 seconds, an unavailable object store takes longer."""
