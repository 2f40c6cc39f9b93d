"""Text index builder: collects documents in portions, each of which becomes a sorted run, and writes a partition when
it has enough of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.row_sets import Ids
from lance_core.index.text.analyzer import Analyzer
from lance_core.index.text.bit_packing import Ints
from lance_core.index.text.list_elements import Elements, split_lists
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.runs import Run, RunBuffer, run_of_tokens
from lance_core.index.text.segment_writer import PartitionDocuments, SegmentWriter

PORTION_BYTES = 2 << 20
RUNS_BYTES = 32 << 20
DOCUMENTS_MAX = 1 << 20
POSITIONS_MAX = 1 << 23
"""Documents and positions from which a partition is written, so that the posting list of a word that is in all of them
can be encoded in memory."""


@dataclass(slots=True)
class TextBuilder:
    """Builder of one segment."""

    writer: SegmentWriter
    analyzer: Analyzer
    _runs: RunBuffer = field(default_factory=lambda: RunBuffer(RUNS_BYTES))
    _rows: list[Ids] = field(default_factory=list)
    _lengths: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    _elements: list[Elements] = field(default_factory=list)
    _documents: int = 0
    _positions: int = 0

    def add_texts(self, texts: pa.Array, rows: Ids) -> None:
        """Add texts, or lists of texts, with their row numbers."""
        if self.analyzer.parameters.document_granularity == "list_element":
            self._add_lists(texts, rows)
            return
        for portion, first in _portions(texts, self.analyzer.parameters):
            tokens = self.analyzer.analyze_all(portion)
            if not len(tokens.documents):
                continue
            is_new = np.ones(len(tokens.documents), dtype=np.bool_)
            is_new[1:] = tokens.documents[1:] != tokens.documents[:-1]
            at = np.flatnonzero(is_new)
            documents = np.cumsum(is_new, dtype=np.int32) + np.int32(self._documents - 1)
            lengths = np.diff(np.append(at, len(documents)))
            run = run_of_tokens(tokens, documents, with_position=self.analyzer.parameters.with_position)
            self.add_runs((run,), rows[first:][tokens.documents[at]], lengths)

    def _add_lists(self, lists: pa.Array, rows: Ids) -> None:
        """Add each element of each list as a document, also one that is null or has no terms."""
        texts, parents, elements = split_lists(lists)
        for portion, first in _portions(texts, self.analyzer.parameters):
            tokens = self.analyzer.analyze_all(portion)
            runs: tuple[Run, ...] = ()
            if len(tokens.documents):
                documents = tokens.documents + np.int32(self._documents)
                runs = (run_of_tokens(tokens, documents, with_position=self.analyzer.parameters.with_position),)
            lengths = np.bincount(tokens.documents, minlength=len(portion))
            at = slice(first, first + len(portion))
            self.add_runs(runs, rows[parents[at]], lengths, elements[at])

    def add_runs(self, runs: Iterable[Run], rows: Ids, lengths: Ints, elements: Elements | None = None) -> None:
        """Add the postings of documents, which are numbered from `next_document` on. Several runs have different
        terms. `elements` are the places of the documents in their lists."""
        for run in runs:
            self._runs.add(run)
        self._rows.append(rows)
        self._lengths.append(lengths.astype(np.uint32))
        if elements is not None:
            self._elements.append(elements)
        self._documents += len(rows)
        if self.analyzer.parameters.with_position:
            self._positions += int(lengths.sum())
        if self._documents >= DOCUMENTS_MAX or self._positions >= POSITIONS_MAX:
            self._write_partition()

    @property
    def next_document(self) -> int:
        """Number of the next document in its partition."""
        return self._documents

    def finish(self) -> None:
        """Write what remains, and the metadata of the segment."""
        if self._documents:
            self._write_partition()
        self.writer.finish()

    def close(self) -> None:
        """Delete temporary files."""
        self._runs.close()

    def _write_partition(self) -> None:
        elements = np.concatenate(self._elements) if self._elements else None
        documents = PartitionDocuments(np.concatenate(self._rows), np.concatenate(self._lengths), elements)
        self.writer.write_partition(documents, self._runs.merged())
        self._runs.close()
        self._runs = RunBuffer(RUNS_BYTES)
        self._rows, self._lengths, self._elements = [], [], []
        self._documents = self._positions = 0


def _portions(texts: pa.Array, parameters: TextParameters) -> Iterator[tuple[pa.Array, int]]:
    """Yield consecutive parts of texts, each of some megabytes, with the number of its first text."""
    lengths = 1
    if parameters.base_tokenizer == "ngram" and not parameters.prefix_only:
        lengths += parameters.max_ngram_length - parameters.min_ngram_length
    limit = PORTION_BYTES // lengths
    step = max(1, len(texts) * limit // max(limit, texts.nbytes))
    start = 0
    while start < len(texts):
        portion = texts.slice(start, step)
        while len(portion) > 1 and portion.nbytes > 2 * limit:  # texts of very different lengths
            portion = portion.slice(0, len(portion) // 2)
        yield portion, start
        start += len(portion)
