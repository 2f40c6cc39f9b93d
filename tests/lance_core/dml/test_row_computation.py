"""Tests of `lance_core/dml/row_computation.py` and `function_calls.py`: every row gets the value of the function or its
error, whatever the form of the calls, and calls keep their rate, timeout and retries."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lance_core import InvalidInput
from lance_core.dml.blob_inputs import FunctionInputs
from lance_core.dml.computed_column import ComputedColumn
from lance_core.dml.function_calls import FunctionCalls, Pacer, assigned_devices, device_addresses
from lance_core.dml.row_computation import ComputedRows, compute_rows
from lance_core.runtime import SYSTEM_RUNTIME, Runtime


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def runtime(self) -> Runtime:
        def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            self.now += seconds

        return replace(SYSTEM_RUNTIME, elapsed_ns=lambda: round(self.now * 1e9), sleep=sleep, random=lambda: 0.5)


def compute(column: ComputedColumn, batch: pa.RecordBatch, **options: Any) -> ComputedRows:
    column.check()
    calls = FunctionCalls(column, str(random.random()), **options)
    return compute_rows(calls, FunctionInputs(batch, tuple(batch.schema.names)), "t.lance")


FAILING = {3, 4, 11}


def triple(number: int) -> int:
    if number in FAILING:
        raise LookupError(f"no triple of {number}")
    return 3 * number


async def triple_later(number: int) -> int:
    await asyncio.sleep(0)
    return triple(number)


async def triple_row_later(row: dict[str, int]) -> int:
    return await triple_later(row["a"])


async def triple_batch_later(batch: pa.RecordBatch) -> list[int]:
    return [await triple_later(number) for number in batch.column(0).to_pylist()]


FORMS: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "batch": (lambda batch: [triple(each) for each in batch.column("a").to_pylist()], {}),
    "small batches": (lambda batch: pa.array([triple(each) for each in batch["a"].to_pylist()]), {"batch_rows": 5}),
    "pandas": (lambda frame: frame["a"].map(triple), {"input_format": "pandas"}),
    "numpy": (lambda columns: np.array([triple(int(each)) for each in columns["a"]]), {"input_format": "numpy"}),
    "row": (lambda row: triple(row["a"]), {"per": "row"}),
    "coroutine of a row": (triple_row_later, {"per": "row", "concurrency": 3, "timeout": 10}),
    "coroutine of a batch": (triple_batch_later, {"batch_rows": 4}),
}


@pytest.mark.parametrize("policy", ["fail", "null", "skip"])
@pytest.mark.parametrize("form", FORMS)
def test_every_row_has_its_value_or_its_error(form: str, policy: Any) -> None:
    function, settings = FORMS[form]
    column = ComputedColumn("t", pa.int64(), function, inputs=["a"], on_error=policy, **settings)
    batch = pa.record_batch({"a": range(20)})
    if policy == "fail":
        with pytest.raises(LookupError) as raised:
            compute(column, batch)
        assert "t.lance: the function of computed column 't' raised this" in raised.value.__notes__
        return
    rows = compute(column, batch)
    assert [(each.position, each.type, each.message) for each in rows.errors] == [
        (number, "LookupError", repr(f"no triple of {number}")[1:-1]) for number in sorted(FAILING)
    ]
    expected = {number: None if number in FAILING else 3 * number for number in range(20)}
    if policy == "skip":
        expected = {number: value for number, value in expected.items() if value is not None}
    assert dict(zip(rows.positions.tolist(), rows.values.to_pylist(), strict=True)) == expected


def test_batches_have_the_form_that_is_asked_for() -> None:
    received: list[Any] = []
    vectors = pa.array([[1.0, 2.0], None, [5.0, 6.0]], pa.list_(pa.float32(), 2))
    batch = pa.record_batch({"title": ["a", None, "c"], "n": pa.array([1, None, 3]), "vector": vectors}).slice(1)

    def record(argument: Any) -> list[int]:
        received.append(argument)
        return [0, 0]

    for form in ("arrow", "pandas", "numpy"):
        compute(ComputedColumn("t", pa.int64(), record, inputs=["title"], input_format=form), batch)
    arrow, frame, columns = received
    assert isinstance(arrow, pa.RecordBatch)
    assert isinstance(frame, pd.DataFrame)
    assert frame["title"].tolist() == [None, "c"]
    assert columns["title"].tolist() == [None, "c"]
    assert columns["vector"].shape == (2, 2)
    assert columns["vector"][1].tolist() == [5.0, 6.0]
    assert np.isnan(columns["vector"][0]).all()
    assert np.isnan(columns["n"][0])


def test_asynchronous_calls_overlap_up_to_their_concurrency() -> None:
    running, most = 0, 0

    async def call(row: dict[str, int]) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return row["a"]

    column = ComputedColumn("t", pa.int64(), call, inputs=["a"], per="row", concurrency=7)
    assert compute(column, pa.record_batch({"a": range(50)})).values.to_pylist() == list(range(50))
    assert most == 7


def test_tasks_share_a_rate() -> None:
    """Each of three tasks starts a call at its turn, so that all together start one in each tenth of a second."""
    starts: list[float] = []
    rate, tasks = 10.0, 3
    for number in range(tasks):
        clock = Clock()

        def call(row: dict[str, int], clock: Clock = clock) -> int:
            starts.append(round(clock.now, 6))
            return row["a"]

        column = ComputedColumn("t", pa.int64(), call, inputs=["a"], per="row", rate_limit=rate)
        pacer = Pacer(tasks / rate, number / rate)
        compute(column, pa.record_batch({"a": range(4)}), pacer=pacer, runtime=clock.runtime())
    assert sorted(starts) == [round(number / rate, 6) for number in range(12)]


class Unavailable(Exception):
    """Error of a service that names the time at which it can be called again."""

    def __init__(self, message: str, retry_after: float = 7) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("error", "retry_on", "waits"),
    [
        (TimeoutError("late"), ["TimeoutError"], [2.0, 4.0]),
        (ConnectionResetError("gone"), ["ConnectionError"], [2.0, 4.0]),
        (LookupError("wrong"), [KeyError, "builtins.ValueError"], None),
        (LookupError("wrong"), [LookupError], [2.0, 4.0]),
        (Unavailable("later"), [], [7.0, 7.0]),
        (Unavailable("never", math.inf), [], None),
        (Unavailable("never", math.inf), [Unavailable], [2.0, 4.0]),
    ],
)
def test_a_call_is_repeated_after_some_errors(error: Exception, retry_on: list[Any], waits: list[float] | None) -> None:
    calls, clock = Counter[str](), Clock()

    def call(batch: pa.RecordBatch) -> list[int]:
        calls["made"] += 1
        if calls["made"] < 3:
            raise error
        return [1]

    column = ComputedColumn(
        "t", pa.int64(), call, inputs=["a"], retries=2, retry_on=retry_on, retry_seconds=2.0, on_error="null"
    )
    rows = compute(column, pa.record_batch({"a": [1]}), runtime=clock.runtime())
    if waits is None:
        assert (calls["made"], rows.values.to_pylist(), len(rows.errors)) == (1, [None], 1)
    else:
        assert (calls["made"], rows.values.to_pylist(), clock.waits) == (3, [1], waits)


def test_a_call_that_takes_too_long_fails() -> None:
    async def call(row: dict[str, int]) -> int:
        await asyncio.sleep(0 if row["a"] else 3600)
        return row["a"]

    column = ComputedColumn("t", pa.int64(), call, inputs=["a"], per="row", timeout=0.01, on_error="skip")
    rows = compute(column, pa.record_batch({"a": [0, 1]}))
    assert (rows.positions.tolist(), [(each.position, each.type) for each in rows.errors]) == (
        [1],
        [(0, "TimeoutError")],
    )


def test_no_call_starts_after_the_end() -> None:
    made: list[int] = []
    column = ComputedColumn("t", pa.int64(), lambda row: made.append(row["a"]), inputs=["a"], per="row")
    rows = compute_rows(
        FunctionCalls(column, "ended"),
        FunctionInputs(pa.record_batch({"a": range(9)}), ("a",)),
        "t.lance",
        lambda: len(made) == 4,
    )
    assert (rows.positions.tolist(), made) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_function_is_made_once_for_a_job_on_its_devices() -> None:
    made: list[tuple[str, ...]] = []

    async def setup() -> Callable[[pa.RecordBatch], list[int]]:
        made.append(device_addresses())
        return lambda batch: [len(made)] * batch.num_rows

    column = ComputedColumn("t", pa.int64(), setup=setup, inputs=["a"])
    for job, devices in (("1", ["0"]), ("1", ["0"]), ("1", ["1"]), ("2", ["1"])):
        with assigned_devices({"gpu": tuple(devices)}):
            FunctionCalls(column, job)
    assert made == [("0",), ("1",), ("1",)]
    assert device_addresses() == ()


def test_errors_are_stored_without_secrets_and_cut() -> None:
    def call(row: dict[str, str]) -> int:
        raise OSError(row["a"])

    column = ComputedColumn("t", pa.int64(), call, inputs=["a"], per="row", on_error="null")
    rows = compute(column, pa.record_batch({"a": ["x" * 600, "GET https://me:word@host failed"]}))
    assert [each.message for each in rows.errors] == ["x" * 500, "(the message contains a secret)"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": 1}, "timeout= needs a function that is declared with async def"),
        ({"concurrency": 2}, "concurrency= needs a function that is declared with async def"),
        ({"rate_limit": 0}, "must be a positive number"),
        ({"per": "row", "batch_rows": 3}, "leave out batch_rows="),
        ({"input_format": "polars"}, "must be one of arrow, pandas, numpy, torch"),
        ({"retry_on": "TimeoutError"}, "is a list of errors"),
        ({"resources": {"gpu": 0}}, "give a positive amount"),
        ({"resources": {"cpus": 1.5}}, "cpus are whole"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ComputedColumn("t", pa.int64(), len, inputs=["a"], **settings).check()
