"""Frame types: recognizes the data frames of several libraries and converts them to Arrow and back.

Each library is an optional import: it is loaded when an input needs its frame, and never to recognize a frame of
another library. DataFrames of Spark are handled elsewhere: their rows stay in Spark and pass through
`lance_assets.spark`.
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
    """Rows of an input, not read yet."""

    table: Table
    columns: Sequence[str] | None
    filter: str | None

    def to_table(self) -> pa.Table:
        """Read all rows."""
        return self.table.to_table(self.columns, self.filter)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader that reads the rows batch by batch."""
        empty = self.table.to_table(self.columns, self.filter, limit=0)
        return pa.RecordBatchReader.from_batches(empty.schema, self.table.to_batches(self.columns, self.filter))


@dataclass(frozen=True, slots=True)
class FrameType:
    """Type of frame with its conversions. Its class is given by name, so that no library is imported for it."""

    module: str
    name: str
    to_arrow: Callable[[Any], Rows]
    from_scan: Callable[[Scan], object]

    def loaded_class(self) -> type | None:
        """Return the class of the frame; `None` if its library is not imported, so that no such frame can exist."""
        frame_class = getattr(sys.modules.get(self.module), self.name, None)
        return frame_class if isinstance(frame_class, type) else None


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
            f"an input needs a frame of {name}, which is not installed here. Run: pip install {name}"
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
            f"{scan.table.uri}: {rows.num_rows} rows do not fit into one batch; annotate the input as pyarrow.Table or "
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
    """Return the type of a frame; `None` for any other object."""
    return next((candidate for candidate in FRAME_TYPES if _is_instance(frame, candidate)), None)


def frame_type_for(annotation: object) -> FrameType | None:
    """Return the frame type for the type annotation of an input; `None` if it is no known frame."""
    return next((candidate for candidate in FRAME_TYPES if _is_class(annotation, candidate)), None)


def _is_instance(frame: object, frame_type: FrameType) -> bool:
    frame_class = frame_type.loaded_class()
    return frame_class is not None and isinstance(frame, frame_class)


def _is_class(annotation: object, frame_type: FrameType) -> bool:
    frame_class = frame_type.loaded_class()
    return frame_class is not None and annotation is frame_class


def is_spark_frame(frame: object) -> bool:
    """Return whether the object is a DataFrame of Spark, classic or of Spark Connect."""
    return hasattr(frame, "mapInArrow") and hasattr(frame, "sparkSession")


def is_spark_frame_type(annotation: object) -> bool:
    """Return whether a type annotation is a DataFrame of Spark."""
    return (
        isinstance(annotation, type)
        and annotation.__name__ == "DataFrame"
        and annotation.__module__.startswith("pyspark.")
    )
