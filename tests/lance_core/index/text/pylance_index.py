"""Text indices that pylance builds, read back as plain values."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.index.index_type import Segment
from lance_core.index.segment_files import OpenSegment
from lance_core.index.text.segment_reader import TextPartition, TextSegment

Occurrences = Mapping[tuple[str, int], list[int]]
"""Positions by term and row number."""


def partitions_of(table: Table, name: str = "body_idx") -> tuple[TextPartition, ...]:
    """Return the partitions of the only segment of an index."""
    (metadata,) = (index for index in table.indices if index.name == name)
    files = OpenSegment(table._location, metadata)
    return TextSegment(Segment(metadata, files, lambda high: table.count_rows())).partitions


def occurrences_of(partitions: tuple[TextPartition, ...]) -> tuple[Occurrences, Mapping[int, int]]:
    """Return all positions, and the number of tokens by row number."""
    found: dict[tuple[str, int], list[int]] = {}
    lengths: dict[int, int] = {}
    for partition in partitions:
        rows = partition.documents.row_numbers.tolist()
        lengths |= zip(rows, partition.documents.lengths.tolist(), strict=True)
        tokens = partition.list_tokens()
        numbers = tokens.numbers.tolist()
        lists = zip(tokens.terms.to_pylist(), partition.postings(numbers), partition.positions_of(numbers), strict=True)
        for term, postings, positions in lists:
            for document, start, end in zip(postings.documents, positions.starts, positions.starts[1:], strict=False):
                found[term, rows[document]] = positions.values[start:end].tolist()
    return found, lengths


def index_of_pylance(directory: Path, texts: pa.Array, **parameters: Any) -> tuple[Occurrences, Mapping[int, int]]:
    """Return the contents of the index that pylance builds on texts."""
    uri = str(directory / "pylance")
    shutil.rmtree(uri, ignore_errors=True)
    dataset = lance.write_dataset(pa.table({"body": texts}), uri)
    dataset.create_scalar_index("body", "INVERTED", **{"with_position": True, **parameters})
    return occurrences_of(partitions_of(Table.open(uri)))
