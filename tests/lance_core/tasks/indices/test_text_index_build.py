"""Text index build by workers: pieces of fragments become one segment with the terms of a build in one process."""

from pathlib import Path
from typing import Any

import lance
import pytest

from lance_core import InvalidInput, Table
from lance_core.dml.index_definition import IndexRequest
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices import index_build, text_build
from lance_core.tasks.indices.index_build import build_index, optimize_indices
from tests.lance_core.index.index_differential import rows
from tests.lance_core.index.text.pylance_index import occurrences_of, partitions_of
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

PARAMETERS: dict[str, Any] = {"with_position": True, "stem": False}


@pytest.fixture(autouse=True)
def distribute_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_TEXTS_MAX", 10)
    monkeypatch.setattr(text_build, "DRIVER_MERGE_TOKENS_MAX", 0)


def build(table: Table, runner: InProcessWorkers, only: str = "all", **params: Any) -> Table:
    request = IndexRequest("word", "INVERTED", name="words", params=params)
    reference = TableRef(table.uri, durable=False)
    return build_index(reference, request, only, options=WriteOptions(), runner=runner).table


def contents(table: Table, name: str = "words") -> Any:
    return occurrences_of(partitions_of(table, name))


def check_equals_new_index(table: Table) -> None:
    new = table.create_index("word", "INVERTED", name="new", **PARAMETERS).table
    assert contents(new) == contents(new, "new")
    new.drop_index("new")


LIMITS = {
    # tokens of a range, documents of a partition, partitions that are copied; partitions of both segments
    "one worker merges": (1 << 21, 1 << 20, 0, 1, 1),
    "ranges of terms": (16, 1 << 20, 0, 1, 1),
    "several partitions": (16, 50, 0, 3, 4),
    "copied partitions": (16, 1 << 20, 9, 2, 1),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_index_equals_that_of_one_process(
    tmp_path: Path, limits: tuple[int, ...], stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_tokens, documents_max, copied, partitions, merged_partitions = limits
    monkeypatch.setattr(text_build, "RANGE_TOKENS", range_tokens)
    monkeypatch.setattr(text_build, "DOCUMENTS_MAX", documents_max)
    monkeypatch.setattr(text_build, "COPIED_PARTITIONS_MAX", copied)
    monkeypatch.setattr(text_build, "partition_count", lambda fragments, _slots: max(1, len(fragments)))
    table = Table.create(tmp_path / "t", rows(0, 130), max_rows_per_file=30, stable_row_ids=stable, durable=False)
    table = table.delete("id % 10 = 4").table
    table = build(table, InProcessWorkers(slots=2), **PARAMETERS)
    assert len(partitions_of(table, "words")) == partitions
    assert {each.name for each in Path(table.uri, "_indices").iterdir()} == {str(index.uuid) for index in table.indices}
    check_equals_new_index(table)
    table = table.refresh().append(rows(130, 60), max_rows_per_file=20).table
    table = build(table, InProcessWorkers(slots=2, lost_partitions=frozenset({1})), "uncovered", **PARAMETERS)
    assert len(table.indices) == 2
    reference = TableRef(table.uri, durable=False)
    table = optimize_indices(reference, None, "all", options=WriteOptions(), runner=InProcessWorkers(slots=2)).table
    check_equals_new_index(table)
    assert len(partitions_of(table, "words")) == merged_partitions
    found = lance.dataset(table.uri).to_table(full_text_query="w3", columns=["word"])["word"].to_pylist()
    assert len(found) == table.refresh().count_rows("word = 'w3'") > 0
    assert not [each for each in table.refresh().fsck("head").findings if each.rule.startswith("index_")]


def test_other_parameters_build_the_index_again(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 90), max_rows_per_file=30, durable=False)
    runner = InProcessWorkers(slots=2)
    table = build(table, runner, **PARAMETERS)
    assert build(table, runner, "needed", **PARAMETERS).version == table.version
    with pytest.raises(InvalidInput, match="'words' was built with"):
        build(table, runner, "uncovered", with_position=False)
    table = build(table, runner, "needed", with_position=False)
    assert not partitions_of(table, "words")[0].has_positions
