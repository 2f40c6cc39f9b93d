"""Examination of a vector segment for `fsck`: reads its model, row numbers, codes and graphs, and reports
contradictions.

Start with `examine`.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt, LanceError, Unsupported
from lance_core.format.row_sets import RowSet
from lance_core.index.index_type import Segment, SegmentExamination
from lance_core.index.vector.graph import StoredGraphs
from lance_core.index.vector.model import (
    ROW_NUMBER,
    STORAGE_FILE,
    StoredModel,
    check_has_columns,
    open_segment_files,
    read_model,
)
from lance_core.index.vector.partitions import read_codes
from lance_core.scan.vector_columns import is_multivector, vector_field

_PROBLEMS_MAX = 3
"""Problems of each sort that are reported."""
_ROWS_AT_A_TIME = 65_536


def examine(segment: Segment, column: pa.Field) -> SegmentExamination:
    """Read all files of a segment. Vectors without a distance are not listed, and several vectors of a row are, if the
    values of the column are lists of vectors."""
    path = segment.metadata.qualified_path
    index, storage = open_segment_files(segment.files, path=path)
    check_has_columns(storage, (ROW_NUMBER,), path=f"{path}/{STORAGE_FILE}")
    problems: list[str] = []
    left_out = np.empty(0, dtype=np.uint64)
    try:
        stored = read_model(index, storage, path=path)
        left_out = stored.left_out
        problems += _problems_of_model(stored, column)
        problems += _first_errors(_read_codes(stored, storage, path=path))
        if stored.model.has_graphs:
            problems += _first_errors(_read_graphs(StoredGraphs(index, stored, path=path), stored))
    except Unsupported:
        raise
    except LanceError as error:
        problems.append(str(error))
    parts = [np.empty(0, dtype=np.uint64)]
    for batch in storage.read([ROW_NUMBER], 0, storage.row_count) if storage.row_count else ():
        parts.append(batch.column(0).drop_null().to_numpy())
    numbers = np.concatenate(parts)
    rows = RowSet.of(numbers)
    if len(rows) < len(numbers) and not is_multivector(column.type):
        problems.append(f"{len(numbers) - len(rows):,} rows are listed more than once")
    rows |= RowSet.of(left_out)
    return SegmentExamination(rows, lists_every_row=False, problems=tuple(dict.fromkeys(problems)))


def _problems_of_model(stored: StoredModel, column: pa.Field) -> Iterator[str]:
    dimension = vector_field(column).type.list_size
    if stored.model.dimension != dimension:
        yield f"its vectors have {stored.model.dimension} dimensions, those of the column {dimension}"
    occupied = stored.model.float_centroids[stored.partitions.lengths > 0]
    if not np.isfinite(occupied).all():
        yield f"{int((~np.isfinite(occupied)).any(axis=1).sum()):,} partitions have centroids that are not finite"


def _first_errors(errors: Iterator[LanceError]) -> list[str]:
    """Return the first few errors of all."""
    found = [str(error) for error in errors]
    more = [f"{len(found) - _PROBLEMS_MAX:,} more errors of this sort"] if len(found) > _PROBLEMS_MAX else []
    return found[:_PROBLEMS_MAX] + more


def _read_codes(stored: StoredModel, storage: FileReader, *, path: str) -> Iterator[LanceError]:
    """Read the codes of all rows, and yield the error of each range that cannot be read."""
    for start in range(0, storage.row_count, _ROWS_AT_A_TIME):
        count = min(_ROWS_AT_A_TIME, storage.row_count - start)
        try:
            read_codes(storage, stored.code_columns, start, count, path=f"{path}/{STORAGE_FILE}")
        except (LanceError, pa.ArrowException) as error:
            yield error if isinstance(error, LanceError) else Corrupt(str(error), path=path, field="codes")


def _read_graphs(graphs: StoredGraphs, stored: StoredModel) -> Iterator[LanceError]:
    """Read the graph of each partition that has rows, and yield the errors."""
    for partition in np.flatnonzero(stored.partitions.lengths).tolist():
        try:
            graphs.read(partition, with_distances=True)
        except (Corrupt, Unsupported) as error:
            yield error
