"""From a partition's key to the version that it names, and what is wrong where there is none.

Anybody can type a key into Dagster's pages, and cleanup takes versions whose partitions are still listed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key, version_of
from lance_core import InvalidInput, NotFound, Table

_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class VersionLookup:
    """Those that there are now, of the table that is there now."""

    ledger: Ledger
    head: Table
    incarnation: int
    numbers: frozenset[int]

    @classmethod
    def of(cls, ledger: Ledger, head: Table, epoch: int) -> "VersionLookup":
        return cls(ledger, head, epoch, frozenset(head.version_numbers()))

    def open_partition(self, key: str) -> Table:
        """Raises `InvalidInput` or `NotFound`, whose text is for the person who asked."""
        try:
            version = version_of(key)
        except InvalidInput as error:
            raise InvalidInput(f"{error}. {self._describe_versions()}. {_deletion_hint(self.ledger)}") from error
        if version in self.numbers and partition_key(version, self.incarnation) == key:
            try:
                return self.head.at(version)
            except NotFound:
                pass  # cleanup took it since it was listed
        if partition_key(version, self.incarnation) != key:
            raise NotFound(
                f"version gone: {key} is of another table that was at {self.ledger.shown_uri} before; partitions of "
                f"this one look like {partition_key(self.head.version, self.incarnation)}. {_deletion_hint(self.ledger)}"
            )
        if version > max(self.numbers, default=0):
            raise NotFound(
                f"{key} names a version that is not there: {self._describe_versions()}. {_deletion_hint(self.ledger)}; versions "
                "get their partitions by themselves"
            )
        raise NotFound(
            f"version gone: cleanup has removed the version that {key} names, and nothing can be computed of it; "
            f"{self._describe_versions()}. The sensor retires its partition at its next tick; or {_deletion_hint(self.ledger)}"
        )

    def _describe_versions(self) -> str:
        """
        >>> _ranges([1, 2, 3, 7, 9, 10])
        '1-3, 7, 9-10'
        """
        count = len(self.numbers)
        of = f"{self.ledger.label} at {self.ledger.shown_uri}"
        return f"{of} has {count:,} version{'' if count == 1 else 's'}, {_ranges(sorted(self.numbers))}"


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(told) > 2 * _SHOWN_MAX:
        told = [*told[:_SHOWN_MAX], "…", *told[-_SHOWN_MAX:]]
    return ", ".join(told)


def _deletion_hint(ledger: Ledger) -> str:
    return f"delete the key on the page of the asset {ledger.label}, under Partitions, or leave it"
