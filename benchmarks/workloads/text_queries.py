"""Workload `text_queries`: full-text searches in memory, on one index that pylance built."""

import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.texts import draw_texts
from lance_core import Table
from lance_core.text import Boolean, Match, Phrase, Query

_SHORT: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 200_000, Scale.FULL: 1_000_000}
_LONG: Mapping[Scale, int] = {Scale.SMOKE: 200, Scale.DEFAULT: 20_000, Scale.FULL: 100_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}
_CALLS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 20, Scale.FULL: 20}
_WARM_UPS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 30, Scale.FULL: 30}
_K = 10
_PYLANCE = ("pylance",)


class TextQueries:
    name = "text_queries"
    summary = "full-text searches"
    notes = (
        "each search returns a column of the 10 best rows; both systems search the index that pylance built",
        "processor time is that of all threads; on a busy machine only this figure is meaningful",
        "words are those of the ranks 3, 30, ... by frequency; short: 6 to 14 words, long: 60 to 140",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"short_texts": _SHORT[scale], "long_texts": _LONG[scale], "k": _K}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        import lance

        for name, counts, lengths in (("short", _SHORT, (6, 14)), ("long", _LONG, (60, 140))):
            place = stage.workspace / f"{name}.lance"
            rows = pa.table({"id": range(counts[stage.scale]), "body": draw_texts(counts[stage.scale], *lengths)})
            Table.create(place, rows, durable=False)
            lance.dataset(str(place)).create_scalar_index("body", "INVERTED", with_position=True, stem=False)
            words = _words_by_frequency(rows["body"].slice(0, 2_000).to_pylist())
            for description, query in _queries(words, is_long=name == "long"):
                entrants = (
                    Entrant("ours", Side.OURS, partial(_Runner, place, query), ()),
                    Entrant("pylance", Side.PEER, partial(_PeerRunner, place, query), _PYLANCE),
                )
                yield Case(
                    f"{name} texts, {description}",
                    entrants,
                    warm_ups=_WARM_UPS[stage.scale],
                    calls=_CALLS[stage.scale],
                )
            shutil.rmtree(place)


WORKLOAD = TextQueries()


def _words_by_frequency(texts: Sequence[str]) -> list[str]:
    counts: dict[str, int] = {}
    for text in texts:
        for word in text.split():
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))


def _queries(words: Sequence[str], *, is_long: bool) -> Sequence[tuple[str, Query]]:
    """Return searches of words by their rank."""
    first, second, third, fourth = (words[min(rank, len(words) - 1)] for rank in (2, 9, 29, 99))
    if is_long:
        phrase = Phrase(f"{first} {second}", "body")
        return [
            ("phrase", phrase),
            ("one word", Match(third, "body")),
            ("boolean with an optional phrase", Boolean([Match(third, "body")], [phrase])),
        ]
    clauses = Boolean([Match(third, "body")], [Match(fourth, "body"), Match(second, "body")], [Match(first, "body")])
    return [
        ("one word", Match(third, "body")),
        ("one of three words", Match(f"{first} {third} {fourth}", "body")),
        ("all of three words", Match(f"{first} {second} {third}", "body", operator="AND")),
        ("boolean of four", clauses),
    ]


@dataclass(slots=True)
class _Runner:
    place: Path
    query: Query
    _table: Any = None
    _found: pa.Table = field(default_factory=lambda: pa.table({}))
    _seconds: float = 0.0

    def before(self) -> None:
        if self._table is None:
            self._table = self.open()

    def open(self) -> Any:
        return Table.open(str(self.place))

    def call(self) -> None:
        begin = time.process_time()
        self._found = self.search()
        self._seconds = time.process_time() - begin

    def search(self) -> Any:
        return self._table.text_search(self.query, _K, select=["id"])

    def call_figures(self) -> CallFigures:
        return CallFigures({"processor time": self._seconds})

    def facts(self) -> Facts:
        scores = self._found["_score"].to_pylist()
        return {"rows": len(scores), "best score": f"{max(scores, default=0.0):.2f}"}


@dataclass(slots=True)
class _PeerRunner(_Runner):
    def open(self) -> Any:
        import lance

        return lance.dataset(str(self.place))

    def search(self) -> Any:
        columns = ["id", "_score"]
        return self._table.to_table(columns, full_text_query=_as_peer(self.query), limit=_K)


def _as_peer(query: object) -> Any:
    """Return the query of pylance that means the same."""
    from lance import query as peer

    match query:
        case Match():
            return peer.MatchQuery(query.text, query.column or "", operator=peer.FullTextOperator[query.operator])
        case Phrase():
            return peer.PhraseQuery(query.text, query.column or "")
        case Boolean():
            parts = ((peer.Occur.MUST, query.must), (peer.Occur.SHOULD, query.should))
            clauses = [*parts, (peer.Occur.MUST_NOT, query.must_not)]
            return peer.BooleanQuery([(occur, _as_peer(clause)) for occur, each in clauses for clause in each])
    raise AssertionError(query)
