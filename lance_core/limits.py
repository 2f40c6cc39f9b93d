"""How much a table may ask of whoever opens it: every cap in one place, with its reason.

A table is untrusted input. A few bytes can promise more memory than a machine has: empty messages, runs of deleted
rows, compressed nothing. So what is read is measured first, by what it costs and not by what it says. Each cap is far
above what Lance writes; who has such a table all the same, and trusts it, raises one in the environment, for this
process and for its workers:

    LANCE_ASSETS_MANIFEST_BYTES_MAX=1073741824

Nothing here reads a table; what is refused is an `Unsupported` that names the cap. Start at `read_whole` in
`storage/store.py` for files, at `format/size_guard.py` for messages.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lance_core.errors import InvalidInput, Unsupported

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    most: int
    what: str
    """Of what this many are too many, for messages."""

    @classmethod
    def of(cls, name: str, most: int, what: str, environment: Mapping[str, str] = os.environ) -> "Limit":
        """
        >>> Limit.of("ROWS", 10, "rows", {"LANCE_ASSETS_ROWS_MAX": "12"}).most
        12
        """
        limit = cls(name, most, what)
        said = environment.get(limit.variable)
        if said is None:
            return limit
        if not (said.isascii() and said.isdecimal() and int(said)):
            raise InvalidInput(f"{limit.variable} in the environment is a whole number of {what}, not {said!r}")
        return cls(name, int(said), what)

    @property
    def variable(self) -> str:
        return f"LANCE_ASSETS_{self.name}_MAX"

    def check(self, count: int, *, path: str) -> None:
        if count > self.most:
            raise self.exceeded(f"{count:,}", path=path)

    def exceeded(self, count: str, *, path: str) -> Unsupported:
        return Unsupported(
            f"{path} has {count} {self.what}, and no more than {self.most:,} are read. If you trust this table, set "
            f"{self.variable} in the environment to what it needs"
        )


MANIFEST_BYTES = Limit.of("MANIFEST_BYTES", 256 * _MIB, "bytes in a manifest file")
"""A million fragments take half of it."""
TRANSACTION_BYTES = Limit.of("TRANSACTION_BYTES", 64 * _MIB, "bytes in a transaction")
"""Numbers of one byte take eight in memory, and twice that while they are read."""
DELETION_BYTES = Limit.of("DELETION_BYTES", 512 * _MIB, "bytes in a deletion file")
"""A bitmap of four billion rows in no order at all."""
FILE_METADATA_BYTES = Limit.of("FILE_METADATA_BYTES", 256 * _MIB, "bytes of metadata at the end of a data file")
"""Of format 0.1; what newer ones say of themselves, the codec reads."""
REFERENCE_BYTES = Limit.of("REFERENCE_BYTES", _MIB, "bytes in the file of a tag, a branch or a clone")
INTENT_BYTES = Limit.of("INTENT_BYTES", 64 * _MIB, "bytes in the record of an intent, or of work under way")
"""It lists data files, half a million of them here."""
INGESTED_BYTES = Limit.of("INGESTED_BYTES", 512 * _MIB, "bytes in a record of ingested files")
"""Some two hundred a file, and as many in memory."""
LINEAGE_BYTES = Limit.of("LINEAGE_BYTES", 64 * _MIB, "bytes in one sequence of row ids or row versions")
LINEAGE_BYTES_TOGETHER = Limit.of("LINEAGE_BYTES_TOGETHER", 256 * _MIB, "bytes of such sequences beside its fragments")
INDEX_DETAILS_BYTES = Limit.of("INDEX_DETAILS_BYTES", 256 * _MIB, "bytes in the notes of a fragment reuse index")

JSON_PARTS = Limit.of("JSON_PARTS", 1_000_000, "commas and brackets in a record of JSON")
"""An empty object is written with three bytes and takes 64 in memory; what such a record lists are names."""
SMALL_PARTS = Limit.of("SMALL_PARTS", 2_000_000, "parts of less than 16 bytes in one message")
"""Each becomes an object of some 130 bytes, however few bytes say so; a fragment has two or three."""
FRAGMENTS = Limit.of("FRAGMENTS", 2_000_000, "fragments")
FIELDS = Limit.of("FIELDS", 100_000, "fields, with those inside of fields")
"""Each is an object in Python, and a field of Arrow."""
INDICES = Limit.of("INDICES", 100_000, "segments of indices")
INDEX_KEYS = Limit.of("INDEX_KEYS", 4_000_000, "different values in an index with a set of rows for each")
"""A kilobyte each while such an index is built, some hundred bytes while it is open."""
FILES_OF_A_FRAGMENT = Limit.of("FILES_OF_A_FRAGMENT", 10_000, "data files in one fragment")
"""One more for each column added since the last compaction."""
DELETED_ROWS = Limit.of("DELETED_ROWS", 2**26, "deleted rows in one fragment")
"""As numbers they take four bytes each."""
DELETED_ROWS_AS_ARROW = Limit.of("DELETED_ROWS_AS_ARROW", 2**22, "deleted rows in one Arrow file")
"""Lance writes such files for 5,000 rows at most, and zstd makes 16 KB of half a gigabyte."""
