"""Partition lookup: opens the version that a partition key names, or raises an error that says why it has none.

Anyone can type a key into Dagster's pages, and a cleanup removes versions whose partitions are still listed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key, version_of
from lance_core import InvalidInput, NotFound, Table

_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class VersionLookup:
    """Existing versions of the current incarnation of a table."""

    ledger: Ledger
    head: Table
    incarnation: int
    numbers: frozenset[int]

    @classmethod
    def of(cls, ledger: Ledger, head: Table, incarnation: int) -> "VersionLookup":
        return cls(ledger, head, incarnation, frozenset(head.version_numbers()))

    def open_partition(self, key: str) -> Table:
        """Open the version that a partition key names. Raise `InvalidInput` or `NotFound` with a message for the
        user."""
        try:
            version = version_of(key)
        except InvalidInput as error:
            raise InvalidInput(f"{error}. {self._describe_versions()}. {self._deletion_hint()}") from error
        if version in self.numbers and partition_key(version, self.incarnation) == key:
            try:
                return self.head.at(version)
            except NotFound:
                pass  # a cleanup removed it after the listing
        if partition_key(version, self.incarnation) != key:
            raise NotFound(
                f"version gone: {key} belongs to an earlier table at {self.ledger.shown_uri}; partitions of the "
                f"current table look like {partition_key(self.head.version, self.incarnation)}. {self._deletion_hint()}"
            )
        if version > max(self.numbers, default=0):
            raise NotFound(
                f"{key} names a version that does not exist: {self._describe_versions()}. {self._deletion_hint()}; the "
                "sensor adds a partition for each version"
            )
        raise NotFound(
            f"version gone: a cleanup removed the version that {key} names, so it has no profile; "
            f"{self._describe_versions()}. The sensor retires the partition at its next tick"
        )

    def _deletion_hint(self) -> str:
        return f"Delete the key on the page of the asset {self.ledger.label}, under Partitions, or ignore it"

    def _describe_versions(self) -> str:
        """Return a clause with the number of versions and their ranges."""
        count = len(self.numbers)
        table = f"{self.ledger.label} at {self.ledger.shown_uri}"
        return f"{table} has {count:,} version{'' if count == 1 else 's'}, {_ranges(sorted(self.numbers))}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges.

    >>> _ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > 2 * _SHOWN_MAX:
        texts = [*texts[:_SHOWN_MAX], "…", *texts[-_SHOWN_MAX:]]
    return ", ".join(texts)
