"""Checked partition: a partition of an index whose read errors name its segment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from lance_core.index.lookup import UNREADABLE_ERRORS
from lance_core.index.scoped_segments import ScopedSegment
from lance_core.index.text.positions import TokenPositions
from lance_core.index.text.segment_reader import PartitionDocuments, PostingList
from lance_core.index.text.statistics import Partition
from lance_core.index.text.token_set import SortedTokens

Page = TypeVar("Page")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class UnreadableSegment(Exception):
    """Error of a segment that cannot be read, so that the search starts again without it."""

    def __init__(self, scope: ScopedSegment, error: Exception) -> None:
        super().__init__(str(error))
        self.scope, self.error = scope, error


@dataclass(frozen=True, slots=True)
class CheckedPartition:
    """Partition that raises `UnreadableSegment` when its files cannot be read."""

    partition: Partition
    scope: ScopedSegment

    def _read(
        self, read: Callable[Arguments, Result], *arguments: Arguments.args, **keywords: Arguments.kwargs
    ) -> Result:
        try:
            return read(*arguments, **keywords)
        except UNREADABLE_ERRORS as error:
            raise UnreadableSegment(self.scope, error) from error

    @property
    def documents(self) -> PartitionDocuments:
        return self._read(lambda: self.partition.documents)

    @property
    def has_positions(self) -> bool:
        return self._read(lambda: self.partition.has_positions)

    def find(self, term: str) -> int | None:
        return self._read(self.partition.find, term)

    def list_tokens(self) -> SortedTokens:
        return self._read(self.partition.list_tokens)

    def postings(self, tokens: Sequence[int]) -> list[PostingList]:
        return self._read(self.partition.postings, tokens)

    def positions_of(self, tokens: Sequence[int]) -> list[TokenPositions]:
        return self._read(self.partition.positions_of, tokens)

    def cached_weights(self, token: int, create: Callable[[], Page], is_valid: Callable[[Page], bool]) -> Page:
        return self._read(self.partition.cached_weights, token, create, is_valid)
