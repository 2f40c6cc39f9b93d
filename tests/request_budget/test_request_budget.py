"""Request budget: no operation sends more requests to an object store than the table in the repository says.

`make test` counts our requests of the short operations; `make requests` counts all, and pylance's.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lance_core.storage.request_counts import RequestCounts, Transfer
from tests.request_budget.budget import UPDATE, Allowance, read_budget, write_budget
from tests.request_budget.counting import RequestCounter, request_counter
from tests.request_budget.operations import OPERATIONS, Operation

COUNTS = RequestCounts(get=3, head=1, bytes_read=50_000, bytes_written=1_000)


class FewerRequests(UserWarning):
    """An operation sends fewer requests than its budget."""


@pytest.fixture(scope="module")
def counter() -> Iterator[RequestCounter]:
    with request_counter() as started:
        yield started


def test_every_operation_has_a_budget() -> None:
    assert list(read_budget()) == [operation.name for operation in OPERATIONS]


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if not each.is_long], ids=lambda each: each.name)
def test_an_operation_stays_within_its_budget(operation: Operation, counter: RequestCounter) -> None:
    allowed = read_budget()[operation.name].ours
    counts = counter.measure(operation, with_pylance=False).ours
    assert not (excess := allowed.describe_excess(counts, operation.variation)), f"{operation.name}: {excess}"
    if counts.total < allowed.requests - operation.variation:
        fewer = f"{operation.name}: {counts.total} requests instead of {allowed.requests}; {UPDATE} lowers the budget"
        warnings.warn(FewerRequests(fewer), stacklevel=1)


def test_requests_are_counted_by_kind() -> None:
    sent = [
        ("GET", "/bucket/table/data/x.lance"),
        ("GET", "/bucket?list-type=2&prefix=table/"),
        ("HEAD", "/bucket/key"),
        ("PUT", "/bucket/key"),
        ("PUT", "/bucket/key?partNumber=1&uploadId=2"),
        ("POST", "/bucket/key?uploads"),
        ("POST", "/bucket?delete"),
        ("DELETE", "/bucket/key"),
    ]
    counts = RequestCounts.of([Transfer(method, path, 1, 10) for method, path in sent])
    assert counts == RequestCounts(get=1, head=1, list=1, put=3, delete=2, bytes_read=80, bytes_written=8)
    assert counts.total == 8


def test_an_excess_is_described() -> None:
    allowed = Allowance.of(COUNTS)
    assert allowed.describe_excess(COUNTS) == ""
    assert allowed.describe_excess(replace(COUNTS, head=0, put=1)) == ""
    more = allowed.describe_excess(replace(COUNTS, get=4))
    assert more == "5 requests instead of 4: 4 GET instead of 3"
    assert allowed.describe_excess(replace(COUNTS, get=4), variation=1) == ""
    assert allowed.describe_excess(replace(COUNTS, bytes_read=54_000)) == "54 KB read instead of 50"
    assert allowed.describe_excess(replace(COUNTS, bytes_read=53_000)) == ""


def test_the_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    budget = read_budget()
    assert any(row.pylance is None for row in budget.values())
    write_budget(budget, tmp_path / "budget.md")
    assert read_budget(tmp_path / "budget.md") == budget
