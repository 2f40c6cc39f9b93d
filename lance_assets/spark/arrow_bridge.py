"""Rows of a DataFrame, handed to Python tasks in batches of Spark's making.

After every row Spark measures the batch that it fills, so that one of wide rows does not grow too large; with sixteen
columns that takes longer than filling it. Where the types say that so many rows are no large batch, it is told not to.
What that saves, and when it may be: `003-arrow-batch-transfer.md`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lance_assets.spark.session import classic_context
from lance_assets.spark.worker_setup import WorkerTask

BATCH_ROWS = 65_536
"""In a batch of narrow rows, and in one that is measured."""
TEXT_BATCH_ROWS = 1024
"""In a batch that nobody measures: it may be text of a megabyte each."""
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNLIMITED_BYTES = str(2**31 - 1)
_BATCH_BYTES = 64 * 1024**2
_SCALAR_BYTES_MAX = 16
"""Of a number or a time."""
_FIXED_WIDTH_TYPES = (T.NumericType, T.BooleanType, T.DatetimeType, T.AnsiIntervalType, T.NullType)
_TEXT_TYPES = (T.StringType, T.CharType, T.VarcharType)
_PYTHON_NODE = re.compile(r"\b\w*(?:Python|Pandas|InArrow)\w* (\w*)")
_OWN_TASK = re.compile(r"ReadTask_of_version_\d+_of_\w*|KeysTask")
"""They are given numbers of parts, and nothing else."""


def map_in_arrow(
    df: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], output_schema: str
) -> pa.Table:
    """What a task gives back for each partition of the rows."""
    with _batch_properties_set(df):
        return df.mapInArrow(WorkerTask(task), output_schema).toArrow()


@contextmanager
def _batch_properties_set(df: DataFrame) -> Iterator[None]:
    """Of jobs of this thread. Spark Connect knows sessions only."""
    context = classic_context(df.sparkSession)
    if context is None or _runs_python(df):
        yield
        return
    wanted = _batch_properties(df)
    before = {key: context.getLocalProperty(key) for key in wanted}
    _set_local_properties(context, wanted)
    try:
        yield
    finally:
        _set_local_properties(context, before)


def _batch_properties(df: DataFrame) -> Mapping[str, str]:
    """What a session sets itself counts more than what a job says."""
    session = df.sparkSession
    sets = session._jsparkSession.sessionState().conf().contains
    if sets(BYTES_SETTING):
        return {}
    most = unmeasured_batch_rows(df.schema)
    if not sets(ROWS_SETTING):
        return {ROWS_SETTING: str(most or BATCH_ROWS)} | ({BYTES_SETTING: UNLIMITED_BYTES} if most else {})
    return {BYTES_SETTING: UNLIMITED_BYTES} if most and int(session.conf.get(ROWS_SETTING) or 0) <= most else {}


def _set_local_properties(context: SparkContext, properties: Mapping[str, str | None]) -> None:
    for key, value in properties.items():
        context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None takes it away


def unmeasured_batch_rows(schema: T.StructType) -> int | None:
    """How many rows of these types may be a batch without being measured; None if none of them may."""
    kinds = list(_leaf_types(schema))
    if not all(isinstance(kind, _FIXED_WIDTH_TYPES + _TEXT_TYPES) for kind in kinds):
        return None
    most = TEXT_BATCH_ROWS if any(isinstance(kind, _TEXT_TYPES) for kind in kinds) else BATCH_ROWS
    return max(1, min(most, _BATCH_BYTES // (_SCALAR_BYTES_MAX * max(1, len(kinds)))))


def _leaf_types(kind: T.DataType) -> Iterator[T.DataType]:
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaf_types(field.dataType)
    else:
        yield kind


def _runs_python(df: DataFrame) -> bool:
    """Whether rows are handed to Python on their way here too: how many at a time is not for us to say."""
    plan = df._jdf.queryExecution().optimizedPlan().toString()
    return not all(_OWN_TASK.fullmatch(task) for task in _PYTHON_NODE.findall(plan))
