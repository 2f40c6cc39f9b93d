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
from lance_assets.spark.worker_setup import InWorker

ROWS = 65_536
"""In a batch of narrow rows, and in one that is measured."""
ROWS_OF_TEXT = 1024
"""In a batch that nobody measures: it may be text of a megabyte each."""
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
NOT_MEASURED = str(2**31 - 1)
_BATCH_BYTES = 64 * 1024**2
_WIDTH_MAX = 16
"""Of a number or a time."""
_NARROW = (T.NumericType, T.BooleanType, T.DatetimeType, T.AnsiIntervalType, T.NullType)
_TEXT = (T.StringType, T.CharType, T.VarcharType)
_PYTHON = re.compile(r"\b\w*(?:Python|Pandas|InArrow)\w* (\w*)")
_OWN_TASK = re.compile(r"ReadTask_of_version_\d+_of_\w*|KeysTask")
"""They are given numbers of parts, and nothing else."""


def map_in_arrow(
    df: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], gives: str
) -> pa.Table:
    """What a task gives back for each partition of the rows."""
    with _batches_of(df):
        return df.mapInArrow(InWorker(task), gives).toArrow()


@contextmanager
def _batches_of(df: DataFrame) -> Iterator[None]:
    """Of jobs of this thread. Spark Connect knows sessions only."""
    context = classic_context(df.sparkSession)
    if context is None or _runs_python(df):
        yield
        return
    wanted = _settings(df)
    before = {key: context.getLocalProperty(key) for key in wanted}
    _set(context, wanted)
    try:
        yield
    finally:
        _set(context, before)


def _settings(df: DataFrame) -> Mapping[str, str]:
    """What a session sets itself counts more than what a job says."""
    session = df.sparkSession
    sets = session._jsparkSession.sessionState().conf().contains
    if sets(BYTES_SETTING):
        return {}
    most = unmeasured_batch_rows(df.schema)
    if not sets(ROWS_SETTING):
        return {ROWS_SETTING: str(most or ROWS)} | ({BYTES_SETTING: NOT_MEASURED} if most else {})
    return {BYTES_SETTING: NOT_MEASURED} if most and int(session.conf.get(ROWS_SETTING) or 0) <= most else {}


def _set(context: SparkContext, properties: Mapping[str, str | None]) -> None:
    for key, value in properties.items():
        context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None takes it away


def unmeasured_batch_rows(schema: T.StructType) -> int | None:
    """How many rows of these types may be a batch without being measured; None if none of them may."""
    kinds = list(_leaves(schema))
    if not all(isinstance(kind, _NARROW + _TEXT) for kind in kinds):
        return None
    most = ROWS_OF_TEXT if any(isinstance(kind, _TEXT) for kind in kinds) else ROWS
    return max(1, min(most, _BATCH_BYTES // (_WIDTH_MAX * max(1, len(kinds)))))


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    else:
        yield kind


def _runs_python(df: DataFrame) -> bool:
    """Whether rows are handed to Python on their way here too: how many at a time is not for us to say."""
    plan = df._jdf.queryExecution().optimizedPlan().toString()
    return not all(_OWN_TASK.fullmatch(task) for task in _PYTHON.findall(plan))
