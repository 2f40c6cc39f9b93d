"""Repetition index of a page of lists: the rows that end in each chunk of a file of version 2.1 or later.

A decoder finds the chunk of a row by these counts without checking them, and ends the process where they contradict
the page. Start with `RepetitionPage.check`.
"""

from dataclasses import dataclass

import numpy as np

from lance_core.errors import Corrupt

_COUNTS = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class RepetitionPage:
    """Repetition index of one page. Each chunk has the number of rows that end in it, one number for each further
    level of lists, and the number of items of the row that continues in the next chunk."""

    position: int
    byte_count: int
    chunks: int
    depth: int
    rows: int

    def check(self, data: bytes, *, path: str) -> None:
        """Raise `Corrupt` unless the rows that end in the chunks are the rows of the page, and none continues beyond
        the last chunk."""
        width = self.depth + 1
        if self.byte_count != self.chunks * width * _COUNTS.itemsize or len(data) != self.byte_count:
            raise self._error(f"has {self.byte_count} bytes for {self.chunks} chunks", path)
        counts = np.frombuffer(data, dtype=_COUNTS).reshape(self.chunks, width)
        ending = counts[:, 0]
        if int(ending.max(initial=0)) > self.rows or int(ending.sum()) != self.rows:
            raise self._error(f"does not list the {self.rows} rows of its page", path)
        if self.chunks and counts[-1, -1]:
            raise self._error("has a row that continues beyond its last chunk", path)

    def _error(self, problem: str, path: str) -> Corrupt:
        return Corrupt(f"a repetition index {problem}", path=path, field="columns.repetition_index")
