"""The frames that assets return and take: which library a frame is of, and how it becomes Arrow and back.

Each library is an optional import: it is loaded when a frame of it is wanted, and never to look at one of another.
Spark's frames are not here: their rows stay where they are, and go through the ops of `lance_assets.spark`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import pyarrow as pa

from lance_core import InvalidInput, MissingDependency, Table

Rows: TypeAlias = pa.Table | pa.RecordBatchReader


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows that are wanted, not read yet."""

    table: Table
    columns: Sequence[str] | None
    filter: str | None

    def to_table(self) -> pa.Table:
        return self.table.to_table(self.columns, self.filter)

    def to_reader(self) -> pa.RecordBatchReader:
        """Batch by batch."""
        empty = self.table.to_table(self.columns, self.filter, limit=0)
        return pa.RecordBatchReader.from_batches(empty.schema, self.table.to_batches(self.columns, self.filter))


@dataclass(frozen=True, slots=True)
class FrameType:
    """One type of frame, by where it lives, so that nothing is imported to name it."""

    module: str
    name: str
    to_arrow: Callable[[Any], Rows]
    from_scan: Callable[[Scan], object]

    def loaded_class(self) -> type | None:
        """Its class, if anybody has imported the library: a frame of a library that nobody imported is no frame."""
        found = getattr(sys.modules.get(self.module), self.name, None)
        return found if isinstance(found, type) else None


def _to_polars(scan: Scan) -> Any:
    return _import_library("polars").from_arrow(scan.to_table())


def _to_pandas(scan: Scan) -> object:
    _import_library("pandas")
    return scan.to_table().to_pandas()


def _import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"a frame of {name} is asked for, and {name} is not installed here: pip install {name}"
        ) from error


def _from_pandas(frame: Any) -> pa.Table:
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    return pa.Table.from_pandas(frame, preserve_index=False)


def _to_single_batch(scan: Scan) -> pa.RecordBatch:
    rows = scan.to_table().combine_chunks()
    batches = rows.to_batches()
    if len(batches) > 1:  # text and lists of more than 2 GiB
        raise InvalidInput(
            f"{scan.table.uri}: {rows.num_rows} rows do not fit into one batch; take them as pyarrow.Table or as "
            "RecordBatchReader"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)


FRAME_TYPES: tuple[FrameType, ...] = (
    FrameType("pyarrow", "Table", lambda frame: frame, Scan.to_table),
    FrameType("pyarrow", "RecordBatchReader", lambda frame: frame, Scan.to_reader),
    FrameType("pyarrow", "RecordBatch", lambda batch: pa.Table.from_batches([batch]), _to_single_batch),
    FrameType("pandas", "DataFrame", _from_pandas, _to_pandas),
    FrameType("polars", "DataFrame", lambda frame: frame.to_arrow(), _to_polars),
    FrameType("polars", "LazyFrame", lambda frame: frame.collect().to_arrow(), lambda scan: _to_polars(scan).lazy()),
    FrameType("lance_core", "Table", lambda table: table.to_table(), lambda scan: scan.table),
)


def frame_type_of(frame: object) -> FrameType | None:
    return next((kind for kind in FRAME_TYPES if (known := kind.loaded_class()) and isinstance(frame, known)), None)


def frame_type_for(wanted: object) -> FrameType | None:
    """Of the type that an input is annotated with."""
    return next((kind for kind in FRAME_TYPES if (known := kind.loaded_class()) and known is wanted), None)


def is_spark_frame(frame: object) -> bool:
    """Classic and Spark Connect frames alike."""
    return hasattr(frame, "mapInArrow") and hasattr(frame, "sparkSession")


def is_spark_frame_type(wanted: object) -> bool:
    return isinstance(wanted, type) and wanted.__name__ == "DataFrame" and wanted.__module__.startswith("pyspark.")
