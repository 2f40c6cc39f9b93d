"""Recall check: too low a recall fails it, names the version that lowered it, and keeps that version unpublished."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_assets import CheckResult, RecallCheck
from lance_assets.checks import recall
from lance_assets.checks.evaluate import context_at, evaluate
from lance_assets.diagrams.recall_curve import RecallPoint, draw_recall_curve
from lance_assets.writes.audit import Audit
from lance_core import AuditFailed, InvalidInput, Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices.index_build import IndexRequest, build_index
from lance_core.tasks.partitioning import LocalRunner
from tests.lance_core.index.vector.test_multivectors import multivectors
from tests.lance_core.index.vector.test_multivectors import query as multivector_query
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

DRAW = np.random.default_rng(4)
SIZE, CLUSTERS = 8, 40
CENTERS = DRAW.normal(size=(CLUSTERS, SIZE))
COARSE: dict[str, Any] = {"num_sub_vectors": 2, "num_bits": 4, "num_partitions": 8, "name": "v_idx", "replace": True}


def rows_around(centers: np.ndarray, count: int) -> pa.Table:
    vectors = centers[DRAW.integers(0, len(centers), count)] + DRAW.normal(size=(count, SIZE))
    return pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), SIZE)})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(tmp_path / "t", rows_around(CENTERS, 4000))
    return created.create_index("v", "IVF_FLAT", num_partitions=64, max_iters=10).table


def number(result: CheckResult, name: str) -> float:
    value = result.metadata[f"lance/{name}"].value
    assert isinstance(value, int | float)
    return value


def test_a_column_that_does_not_exist_fails(table: Table) -> None:
    evaluated = evaluate(RecallCheck("w"), context_at(table))
    assert not evaluated.result.passed
    assert "there is no column 'w'; available: v" in evaluated.result.description


def test_recall_of_a_version(table: Table) -> None:
    result = RecallCheck("v", nprobes=48).judge(context_at(table))
    assert result.passed, result.description
    assert re.match(r"recall@10 is (0\.9|1\.0)\d+ with nprobes=48$", result.description)
    assert number(result, "recall") >= 0.99
    assert number(result, "uncovered_share") == 0
    assert 1 < number(result, "recommended_nprobes") <= 48
    assert number(result, "search_milliseconds") > 0
    recommended = int(number(result, "recommended_nprobes"))
    assert RecallCheck("v", nprobes=recommended).judge(context_at(table)).passed
    fewer = RecallCheck("v", nprobes=recommended // 2, sample=150).judge(context_at(table))
    assert not fewer.passed
    assert f"nprobes={recommended} reaches it" in fewer.description
    picture = str(result.metadata["lance/recall_curve"].value)
    svg = base64.b64decode(picture.partition("base64,")[2].rstrip(")")).decode()
    assert f"the smallest that reaches it is nprobes={recommended}" in svg
    assert "v, IVF_FLAT, version 2" in svg


def test_recall_equals_a_count_of_the_nearest_rows(table: Table) -> None:
    queries = (CENTERS[:30] + 0.5).tolist()
    result = RecallCheck("v", k=5, nprobes=1, at_least=0.01, queries=queries).judge(context_at(table))
    found = 0
    for query in queries:
        near = table.search("v", query, 5, nprobes=1, columns=["_rowaddr"])["_rowaddr"].to_pylist()
        exact = table.search("v", query, 5, exact=True, columns=["_rowaddr"])["_rowaddr"].to_pylist()
        found += len(set(near) & set(exact))
    assert found / 150 < 1
    assert number(result, "recall") == round(found / 150, 4)
    by_function = RecallCheck("v", k=5, nprobes=1, at_least=0.01, queries=lambda _table: queries)
    assert number(by_function.judge(context_at(table)), "recall") == number(result, "recall")


def test_equal_rows_count_whichever_is_found(tmp_path: Path) -> None:
    once = rows_around(CENTERS, 300)
    table = (
        Table.create(tmp_path / "t", pa.concat_tables([once] * 12))
        .create_index("v", "IVF_FLAT", num_partitions=4)
        .table
    )
    assert number(RecallCheck("v", nprobes=4).judge(context_at(table)), "recall") == 1


def test_the_version_that_lowered_the_recall_is_named(table: Table) -> None:
    check = RecallCheck("v", nprobes=8, at_least=0.9, sample=60)
    assert check.judge(context_at(table)).passed
    table = table.append(rows_around(CENTERS, 50), properties={"dagster.run_id": "run-1"}).table
    assert check.judge(context_at(table)).passed
    table = table.append(rows_around(CENTERS, 950)).table
    uncovered = check.judge(context_at(table))
    assert uncovered.passed
    assert number(uncovered, "uncovered_share") == 0.2
    assert "; 20.0% of the rows are not in the index" in uncovered.description
    table = table.create_index("v", "IVF_PQ", **COARSE, properties={"dagster.run_id": "run-2"}).table
    just_now = check.judge(context_at(table))
    assert not just_now.passed
    assert re.search(r"It was .* in version 4, before create index by run run-2", just_now.description)
    later = table.append(rows_around(CENTERS, 5)).table.delete("_rowid < 2").table
    assert re.search(
        r"It fell from .* in version 4 to .* in version 5: .* by run run-2", check.judge(context_at(later)).description
    )


def test_a_version_below_the_bar_is_not_published(table: Table) -> None:
    audit = Audit([RecallCheck("v", nprobes=8, at_least=0.9, sample=60)])
    params = {name: value for name, value in COARSE.items() if name.startswith("num_")}
    request = IndexRequest("v", "IVF_PQ", "v_idx", replace=True, params=params)
    with pytest.raises(AuditFailed, match="recall"):
        build_index(TableRef(table.uri), request, "all", options=WriteOptions(audit=audit), runner=LocalRunner())
    assert table.refresh().version == table.version
    assert not audit.check_results["recall"].passed
    assert "before create index" in audit.check_results["recall"].description


def test_tables_without_an_answer(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows_around(CENTERS, 300))
    result = RecallCheck("v").judge(context_at(table))
    assert (result.passed, result.description) == (
        True,
        "there is no vector index on v: searches compare every vector",
    )
    table = table.create_index("v", "IVF_FLAT").table.delete("true").table
    assert RecallCheck("v").judge(context_at(table)).description == "no row has a vector in v"


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("at_least= must be a recall", {"at_least": 95}),
        ("at_least= must be a recall", {"at_least": True}),
        ("k= must be a whole number", {"k": 0}),
        ("nprobes= must be a whole number", {"nprobes": 1.5}),
        ("column= must be the name", {"column": ""}),
    ],
)
def test_declarations(message: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"RecallCheck('recall'): {message}")):
        RecallCheck(**{"column": "v", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("recalls", [(1.0,), (0.2, 0.5, 0.97), (0.0, 0.0)])
def test_curves(recalls: Sequence[float]) -> None:
    points = [RecallPoint(2**power, recall, 0.5 + power) for power, recall in enumerate(recalls)]
    recommended = next((each.nprobes for each in points if each.recall >= 0.95), None)
    svg = draw_recall_curve(points, k=10, target=0.95, used=1, recommended=recommended, title="<v>").svg()
    assert svg.count("<circle") == len(points)
    assert "&lt;v&gt;" in svg
    assert ("no number of partitions reaches it" in svg) == (recommended is None)


def test_recall_of_lists_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "lists", multivectors(), durable=False)
    table = table.create_index("v", "IVF_FLAT", metric="cosine", num_partitions=40).table
    everything = RecallCheck("v", nprobes=40, sample=30).judge(context_at(table))
    assert number(everything, "recall") == 1
    assert 0 < number(everything, "queries") < 30  # rows without a vector are no queries
    queries = [multivector_query(seed, seed % 3 + 1).tolist() for seed in range(12)]
    queries[2] = queries[2][0]  # one vector
    found = 0
    for each in queries:
        near, exact = (
            table.search("v", each, 5, columns=["_rowaddr"], **options)["_rowaddr"].to_pylist()
            for options in ({"nprobes": 1}, {"exact": True})
        )
        found += len(set(near) & set(exact))
    check = RecallCheck("v", k=5, nprobes=1, at_least=0.01, queries=queries)
    assert 0 < found < 60
    assert number(check.judge(context_at(table)), "recall") == round(found / 60, 4)
    workers = InProcessWorkers()
    monkeypatch.setattr(recall, "find_runner", lambda: workers)
    monkeypatch.setattr(recall, "ONE_PROCESS_VALUES_MAX", 0)
    assert number(check.judge(context_at(table)), "recall") == round(found / 60, 4)
    assert workers.attempts


def test_large_tables_are_compared_in_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = InProcessWorkers()
    monkeypatch.setattr(recall, "find_runner", lambda: workers)
    alone = RecallCheck("v", nprobes=4).judge(context_at(table))
    assert not workers.attempts
    monkeypatch.setattr(recall, "ONE_PROCESS_VALUES_MAX", 0)
    in_tasks = RecallCheck("v", nprobes=4).judge(context_at(table))
    assert workers.attempts
    assert number(in_tasks, "recall") == number(alone, "recall") > 0


def test_versions_with_the_same_rows_share_exact_answers(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bisection compares all vectors once for versions that differ in their indices only."""
    for _ in range(6):
        table = table.set_config({"a": str(table.version)}).table
    table = table.create_index("v", "IVF_PQ", **COARSE).table
    table = table.set_config({"a": "last"}).table
    compared: list[int] = []
    search = Table.search

    def record(self: Table, *arguments: Any, **options: Any) -> pa.Table:
        compared.extend([int(self.version)] if options.get("exact") else [])
        return search(self, *arguments, **options)

    monkeypatch.setattr(Table, "search", record)
    result = RecallCheck("v", at_least=0.9, nprobes=48).judge(context_at(table))
    assert "It fell from" in result.description
    assert len(compared) == 2  # the version itself, and the first of the earlier ones
