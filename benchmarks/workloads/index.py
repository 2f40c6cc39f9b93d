"""What indices cost to build, and what asking one costs that is open.

Ours and pylance's work on the same data files, each on a table of links to them that is made anew before every build;
pylance says of both what it finds through the index. A build is a line of `_BUILDS`, a question one of `_QUESTIONS`.
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
_QUESTIONS_IN_A_CALL = 20
_FACTOR = 2_654_435_761
"""A prime: numbers times it have every beginning."""


@dataclass(frozen=True, slots=True)
class _Build:
    kind: str
    column: str
    what: str
    condition: str
    """Pylance answers it through the index of either."""


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


def _list(value: int) -> str:
    return f"shuffled IN ({', '.join(str(value * _FACTOR % (9973 + number)) for number in range(100))})"


_QUESTIONS: Mapping[str, tuple[_Build, Callable[[int], str]]] = {
    "equality": (_BUILDS[0], lambda value: f"shuffled = {value}"),
    "a range of 1,000": (_BUILDS[0], lambda value: f"shuffled >= {value} AND shuffled < {value + 1000}"),
    "a list of 100": (_BUILDS[0], _list),
    "1 of 1,000 values": (_BUILDS[3], lambda value: f"of_1000 = {value % 1000}"),
}


class Index:
    name = "index"
    summary = "builds of indices, and questions to an index that is open"
    notes = (
        "builds: from a table of one process, commit included, to files that are written and not flushed to the disk",
        "to_table: the whole way of both, parser and planner included",
        "other questions: ours is the open segment alone, without parser and planner, pylance's a query for row ids",
        "the dataset and the segment stay open from question to question",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "questions_in_a_call": _QUESTIONS_IN_A_CALL}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place, rows = stage.workspace / "table", _ROWS[stage.scale]
        stage.log(f"writing {rows} rows")
        Table.create(str(place), pa.RecordBatchReader.from_batches(_SCHEMA, _batches(rows)), durable=False)
        for build in _BUILDS:
            yield Case(
                f"{build.kind} of {build.what}",
                (
                    Entrant("ours", Side.OURS, partial(_Building, place, "ours", build, _build_ours)),
                    Entrant("pylance", Side.PEER, partial(_Building, place, "pylance", build, _build_theirs), _NEEDS),
                ),
            )
        for what, (build, question) in _QUESTIONS.items():
            asked = place.with_name(f"asked-{build.kind}-{build.column}")
            if not asked.exists():
                _link(place, asked)
                _build_theirs(str(asked), build)
            yield Case(
                f"{build.kind}, {what}",
                (
                    Entrant("ours", Side.OURS, partial(_Asking, asked, question, rows, _asking_ours)),
                    Entrant("pylance", Side.PEER, partial(_Asking, asked, question, rows, _asking_theirs), _NEEDS),
                ),
                calls=5,
                warm_ups=2,
            )
        build, question = _QUESTIONS["equality"]
        asked = place.with_name(f"asked-{build.kind}-{build.column}")
        yield Case(
            "to_table of one row, another each time",
            (
                Entrant("ours", Side.OURS, partial(_Asking, asked, question, rows, _reading_ours)),
                Entrant("pylance", Side.PEER, partial(_Asking, asked, question, rows, _reading_theirs), _NEEDS),
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


def _link(place: Path, other: Path) -> None:
    """Files of a table are never changed, so that two tables may have them."""
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(place, other, copy_function=os.link)


def _build_ours(uri: str, build: _Build) -> None:
    Table.open(uri, durable=False).create_index(build.column, build.kind)


def _build_theirs(uri: str, build: _Build) -> None:
    import lance

    kind: Any = build.kind
    lance.dataset(uri).create_scalar_index(build.column, kind)


@dataclass(slots=True)
class _Building:
    place: Path
    system: str
    build: _Build
    work: Callable[[str, _Build], None]

    @property
    def uri(self) -> Path:
        return self.place.with_name(f"{self.system}-{self.build.kind}-{self.build.column}")

    def before(self) -> None:
        _link(self.place, self.uri)

    def call(self) -> None:
        self.work(str(self.uri), self.build)

    def facts(self) -> Facts:
        import lance

        scanner = lance.dataset(str(self.uri)).scanner(columns=[], with_row_id=True, filter=self.build.condition)
        found = {"through an index": "ScalarIndexQuery" in scanner.explain_plan(), "rows": scanner.to_table().num_rows}
        shutil.rmtree(self.uri)
        return found


@dataclass(slots=True)
class _Asking:
    """The same questions of all, others in each call."""

    place: Path
    question: Callable[[int], str]
    rows: int
    opened: Callable[[str], tuple[Callable[[str], Any], Callable[[Any], int]]]
    """What a question is to it, and how many rows it finds."""
    _ask: tuple[Callable[[str], Any], Callable[[Any], int]] | None = None
    _calls: int = 0
    _questions: list[Any] = field(default_factory=list)
    _found: int = 0

    def before(self) -> None:
        self._ask = self._ask or self.opened(str(self.place))
        self._calls += 1
        values = np.random.default_rng(self._calls).integers(0, self.rows, _QUESTIONS_IN_A_CALL)
        self._questions = [self._ask[0](self.question(int(value))) for value in values]

    def call(self) -> None:
        assert self._ask is not None
        self._found = sum(map(self._ask[1], self._questions))

    def facts(self) -> Facts:
        return {"rows found": self._found}


def _asking_ours(uri: str) -> tuple[Callable[[str], Leaf], Callable[[Leaf], int]]:
    base = load_latest(locate(uri))
    coverage = Coverage(base)
    (standing,) = coverage.segments
    assert standing.kind is not None
    schema = base.manifest.schema.arrow
    segment = coverage.segment_of(standing.metadata)
    (column,) = (schema.field(name) for name in schema.names if standing.metadata.name == f"{name}_idx")
    searcher = standing.kind.open(segment, column)

    def ask(leaf: Leaf) -> int:
        found = searcher.search(leaf)
        assert found is not None
        return len(found.rows)

    return lambda sql: _leaf(Predicate.parse(sql, schema).tree), ask


def _leaf(tree: Node) -> Leaf:
    if isinstance(tree, And):
        low, high = tree.operands
        assert isinstance(low, Comparison)
        assert isinstance(high, Comparison)
        return RangeCondition(low, high)
    assert isinstance(tree, Comparison | In)
    return tree


def _asking_theirs(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    import lance

    dataset = lance.dataset(uri)
    return str, lambda sql: dataset.scanner(columns=[], with_row_id=True, filter=sql).to_table().num_rows


def _reading_ours(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    table = Table.open(uri)
    return str, lambda sql: table.to_table([_BUILDS[0].column], sql).num_rows


def _reading_theirs(uri: str) -> tuple[Callable[[str], str], Callable[[str], int]]:
    import lance

    dataset = lance.dataset(uri)
    return str, lambda sql: dataset.to_table(columns=[_BUILDS[0].column], filter=sql).num_rows
