"""Corpus statistics: the number of documents, their average length, and the number of documents with a term.

They are shared by all partitions that a search of one column reads, so that the scores of its rows are comparable. As
long as indices cover all rows, the statistics are those of the indices, deleted rows included, as in Lance. Otherwise
they are those of the live rows, which a rebuilt index would have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lance_core.index.text.best_documents import Allowed
from lance_core.index.text.positions import TokenPositions
from lance_core.index.text.posting_decoder import Ints
from lance_core.index.text.segment_reader import PartitionDocuments, PostingList
from lance_core.index.text.token_set import SortedTokens

Page = TypeVar("Page")


class Partition(Protocol):
    """Documents with a token set and posting lists: of an index, or scanned."""

    @property
    def documents(self) -> PartitionDocuments: ...

    @property
    def has_positions(self) -> bool: ...

    def find(self, term: str) -> int | None: ...

    def list_tokens(self) -> SortedTokens: ...

    def postings(self, tokens: Sequence[int]) -> list[PostingList]: ...

    def positions_of(self, tokens: Sequence[int]) -> list[TokenPositions]: ...

    def cached_weights(self, token: int, create: Callable[[], Page], is_valid: Callable[[Page], bool]) -> Page: ...


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Partition in a version of a table."""

    partition: Partition
    positions: Ints
    """Table position of each document; negative for a document that the version does not have."""
    live: Allowed | None
    """Documents that the version has; `None` if it has all of them."""
    is_counted: bool = True
    """False if the statistics count the same rows in another partition."""

    @classmethod
    def of(cls, partition: Partition, positions: Ints, *, is_counted: bool = True) -> "PartitionView":
        has_all = not len(positions) or positions.min() >= 0
        return cls(partition, positions, None if has_all else Allowed.of(positions >= 0), is_counted)

    @property
    def size(self) -> int:
        return self.positions.nbytes + (0 if self.live is None else self.live.size)


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of all documents that a search of one column reads."""

    documents: int
    tokens: int
    counts_live_rows: bool

    @classmethod
    def of(cls, views: Sequence[PartitionView], *, counts_live_rows: bool) -> "CorpusStatistics":
        documents = tokens = 0
        for view in views:
            if not view.is_counted:
                continue
            listed = view.partition.documents
            if counts_live_rows and view.live is not None:
                documents += len(view.live.documents)
                tokens += int(listed.lengths[view.live.documents].sum(dtype=np.int64))
            else:
                documents += len(listed.lengths)
                tokens += listed.token_count
        return cls(documents, tokens, counts_live_rows)

    @property
    def average_length(self) -> float:
        return self.tokens / self.documents if self.tokens else 1.0

    def count_documents(self, view: PartitionView, documents: npt.NDArray[np.int32]) -> int:
        """Return how many of these documents of a partition count."""
        if not view.is_counted:
            return 0
        if self.counts_live_rows and view.live is not None:
            return int(np.count_nonzero(view.live.mask[documents]))
        return len(documents)
