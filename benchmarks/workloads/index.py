"""Workload `index`: time of index builds, and of queries against an open index.

Ours and pylance's builds use the same data files, each in a table of hard links that is recreated before every build;
pylance reports for both what it finds through the index. A build is a line of `_BUILDS`, a query one of `_QUERIES`.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import And, Comparison, In, Node
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import Leaf, RangeCondition
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 20_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}
_ROWS_PER_BATCH = 1_000_000
_SEED = 11
_NEEDS = ("pylance",)
_QUERIES_PER_CALL = 20
_FACTOR = 2_654_435_761
"""A prime; multiples of it start with every digit."""


@dataclass(frozen=True, slots=True)
class _Build:
    kind: str
    column: str
    description: str
    condition: str
    """Condition that pylance answers through either index."""


_BUILDS = (
    _Build("BTREE", "shuffled", "whole numbers, shuffled", "shuffled = 4711"),
    _Build("BTREE", "word", "short strings", f"word = '{4711 * _FACTOR % (1 << 32)}'"),
    _Build("BITMAP", "of_100", "100 values", "of_100 = 47"),
    _Build("BITMAP", "of_1000", "1,000 values", "of_1000 = 471"),
    _Build("ZONEMAP", "shuffled", "whole numbers, shuffled", "shuffled = 4711"),
    _Build("BLOOMFILTER", "shuffled", "whole numbers, shuffled", "shuffled = 4711"),
    _Build("NGRAM", "word", "short strings", "contains(word, 'abcd')"),
    _Build("LABEL_LIST", "labels", "lists of up to 3 of 100 labels", "array_has(labels, 'l47')"),
)


def _list_condition(value: int) -> str:
    return f"shuffled IN ({', '.join(str(value * _FACTOR % (9973 + number)) for number in range(100))})"


_QUERIES: Mapping[str, tuple[_Build, Callable[[int], str]]] = {
    "equality": (_BUILDS[0], lambda value: f"shuffled = {value}"),
    "a range of 1,000": (_BUILDS[0], lambda value: f"shuffled >= {value} AND shuffled < {value + 1000}"),
    "a list of 100": (_BUILDS[0], _list_condition),
    "1 of 1,000 values": (_BUILDS[3], lambda value: f"of_1000 = {value % 1000}"),
}


class Index:
    name = "index"
    summary = "index builds, and queries against an open index"
    notes = (
        "builds: by one process, commit included, to files that are written but not flushed to disk",
        "to_table: the whole query of both, parser and planner included",
        "other queries: ours searches the open segment without parser and planner, pylance runs a query for row ids",
        "the dataset and the segment stay open between queries",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "questions_in_a_call": _QUERIES_PER_CALL}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place, rows = stage.workspace / "table", _ROWS[stage.scale]
        stage.log(f"writing {rows} rows")
        Table.create(str(place), pa.RecordBatchReader.from_batches(_SCHEMA, _batches(rows)), durable=False)
        for build in _BUILDS:
            yield Case(
                f"{build.kind} of {build.description}",
                (
                    Entrant("ours", Side.OURS, partial(_BuildRunner, place, "ours", build, _build_ours)),
                    Entrant(
                        "pylance", Side.PEER, partial(_BuildRunner, place, "pylance", build, _build_pylance), _NEEDS
                    ),
                ),
            )
        for description, (build, condition) in _QUERIES.items():
            indexed = place.with_name(f"indexed-{build.kind}-{build.column}")
            if not indexed.exists():
                link_table(place, indexed)
                _build_pylance(str(indexed), build)
            yield Case(
                f"{build.kind}, {description}",
                (
                    Entrant("ours", Side.OURS, partial(_QueryRunner, indexed, condition, rows, _open_our_segment)),
                    Entrant(
                        "pylance",
                        Side.PEER,
                        partial(_QueryRunner, indexed, condition, rows, _open_pylance_scanner),
                        _NEEDS,
                    ),
                ),
                calls=5,
                warm_ups=2,
            )
        build, condition = _QUERIES["equality"]
        indexed = place.with_name(f"indexed-{build.kind}-{build.column}")
        yield Case(
            "to_table of one row, another each time",
            (
                Entrant("ours", Side.OURS, partial(_QueryRunner, indexed, condition, rows, _open_our_table)),
                Entrant(
                    "pylance", Side.PEER, partial(_QueryRunner, indexed, condition, rows, _open_pylance_dataset), _NEEDS
                ),
            ),
            calls=5,
            warm_ups=2,
        )


WORKLOAD = Index()

_SCHEMA = pa.schema(
    [
        ("shuffled", pa.int64()),
        ("word", pa.string()),
        ("of_100", pa.int64()),
        ("of_1000", pa.int64()),
        ("labels", pa.list_(pa.string())),
    ]
)


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(_SEED)
    shuffled = random.permutation(rows)
    labels = pa.array([f"l{number}" for number in range(100)])
    for start in range(0, rows, _ROWS_PER_BATCH):
        some = shuffled[start : start + _ROWS_PER_BATCH]
        ends = np.concatenate([[0], np.cumsum(random.integers(0, 4, len(some)))]).astype(np.int32)
        columns = [
            pa.array(some),
            pa.array(some * _FACTOR % (1 << 32)).cast(pa.string()),
            pa.array(random.integers(0, 100, len(some))),
            pa.array(random.integers(0, 1000, len(some))),
            pa.ListArray.from_arrays(pa.array(ends), labels.take(pa.array(random.integers(0, 100, int(ends[-1]))))),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def link_table(source: Path, target: Path) -> None:
    """Copy the table by hard links; data files are immutable, so two tables can share them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)


def _build_ours(uri: str, build: _Build) -> None:
    Table.open(uri, durable=False).create_index(build.column, build.kind)


def _build_pylance(uri: str, build: _Build) -> None:
    import lance

    kind: Any = build.kind
    lance.dataset(uri).create_scalar_index(build.column, kind)


@dataclass(slots=True)
class _BuildRunner:
    source: Path
    system: str
    build: _Build
    work: Callable[[str, _Build], None]

    @property
    def uri(self) -> Path:
        return self.source.with_name(f"{self.system}-{self.build.kind}-{self.build.column}")

    def before(self) -> None:
        link_table(self.source, self.uri)

    def call(self) -> None:
        self.work(str(self.uri), self.build)

    def facts(self) -> Facts:
        import lance

        scanner = lance.dataset(str(self.uri)).scanner(columns=[], with_row_id=True, filter=self.build.condition)
        facts = {"through an index": "ScalarIndexQuery" in scanner.explain_plan(), "rows": scanner.to_table().num_rows}
        shutil.rmtree(self.uri)
        return facts


@dataclass(slots=True)
class _QueryRunner:
    """Runner of queries. All systems get the same queries, and each call gets different ones."""

    directory: Path
    condition: Callable[[int], str]
    rows: int
    open_system: Callable[[str], tuple[Callable[[str], Any], Callable[[Any], int]]]
    """Function that opens the table at a URI, and returns a function that prepares a query and one that returns its
    number of rows."""
    _system: tuple[Callable[[str], Any], Callable[[Any], int]] | None = None
    _calls: int = 0
    _queries: list[Any] = field(default_factory=list)
    _row_count: int = 0

    def before(self) -> None:
        self._system = self._system or self.open_system(str(self.directory))
        self._calls += 1
        values = np.random.default_rng(self._calls).integers(0, self.rows, _QUERIES_PER_CALL)
        self._queries = [self._system[0](self.condition(int(value))) for value in values]

    def call(self) -> None:
        assert self._system is not None
        self._row_count = sum(map(self._system[1], self._queries))

    def facts(self) -> Facts:
        return {"rows found": self._row_count}


def _open_our_segment(uri: str) -> tuple[Callable[[str], Leaf], Callable[[Leaf], int]]:
    base = load_latest(locate(uri))
    coverage = Coverage(base)
    (segment_coverage,) = coverage.segments
    assert segment_coverage.kind is not None
    schema = base.manifest.schema.arrow
    segment = coverage.segment_of(segment_coverage.metadata)
    (column,) = (schema.field(name) for name in schema.names if segment_coverage.metadata.name == f"{name}_idx")
    searcher = segment_coverage.kind.open(segment, column)

    def query(leaf: Leaf) -> int:
        matches = searcher.search(leaf)
        assert matches is not None
        return len(matches.rows)

    return lambda sql: _as_leaf(Predicate.parse(sql, schema).tree), query


def _as_leaf(tree: Node) -> Leaf:
    if isinstance(tree, And):
        low, high = tree.operands
        assert isinstance(low, Comparison)
        assert isinstance(high, Comparison)
        return RangeCondition(low, high)
    assert isinstance(tree, Comparison | In)
    return tree


def _open_pylance_scanner(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    import lance

    dataset = lance.dataset(uri)
    return str, lambda sql: dataset.scanner(columns=[], with_row_id=True, filter=sql).to_table().num_rows


def _open_our_table(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    table = Table.open(uri)
    return str, lambda sql: table.to_table([_BUILDS[0].column], sql).num_rows


def _open_pylance_dataset(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    import lance

    dataset = lance.dataset(uri)
    return str, lambda sql: dataset.to_table(columns=[_BUILDS[0].column], filter=sql).num_rows
