"""Search check: how well full-text searches find the rows that a labelled set of queries expects, for each version.

NDCG@k counts an expected row the more the higher it ranks, recall@k counts it wherever it is among the first `k`. Both
appear as plots over the versions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_core import InvalidInput, Table

Expected = Mapping[str, Sequence[object]]
"""Rows that each query should find, by the values of the key column."""
ExpectedFunction = Callable[[Table], Expected]
_MEASURES = ("ndcg", "recall")
_WORST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SearchCheck(Check):
    """Full-text searches find the expected rows of a labelled set of queries.

        SearchCheck({"table format": [7, 12], "fencing": [31]}, key="id", columns=["title", "body"], at_least=0.8)
        SearchCheck(load_judgements, measure="recall", k=20, at_least=0.95)

    The mean of NDCG@k or recall@k over the queries must be `at_least`. `key` is the column that identifies rows in the
    set. A query is a text or JSON, as in `Table.text_search`; `columns` and `filter` are those of the searches. As an
    audit of a write, the check keeps a version below `at_least` from being published.
    """

    name: str = field(default="search", kw_only=True)
    queries: ExpectedFunction | Expected
    k: int = 10
    at_least: float = 0.8
    measure: str = "ndcg"
    key: str = "id"
    columns: Sequence[str] | None = None
    filter: str | None = None

    def check(self) -> None:
        if not callable(self.queries):
            _check_expected(self, self.queries)
        share: object = self.at_least
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise self.declaration_error(f"at_least= must be a number above 0 and up to 1, not {share!r}")
        if type(self.k) is not int or self.k < 1:
            raise self.declaration_error(f"k= must be a whole number from 1, not {self.k!r}")
        if self.measure not in _MEASURES:
            raise self.declaration_error(f"measure= must be 'ndcg' or 'recall', not {self.measure!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return f"Full-text searches reach {self.measure}@{self.k} of {self.at_least:g} on a labelled set of queries."

    def judge(self, context: CheckContext) -> CheckResult:
        expected = self.queries(context.table) if callable(self.queries) else self.queries
        _check_expected(self, expected)
        scores, seconds = {}, 0.0
        for query, rows in expected.items():
            started = time.perf_counter()
            found = context.table.text_search(
                query, self.k, columns=self.columns, filter=self.filter, select=[self.key]
            )
            seconds += time.perf_counter() - started
            scores[query] = _measures(found[self.key].to_pylist(), list(rows), self.k)
        means = {name: sum(score[name] for score in scores.values()) / len(scores) for name in _MEASURES}
        worst = sorted(scores, key=lambda query: scores[query][self.measure])[:_WORST_SHOWN]
        metadata: dict[str, dg.MetadataValue] = {
            **{f"lance/{name}": dg.MetadataValue.float(round(mean, 4)) for name, mean in means.items()},
            "lance/search_milliseconds": dg.MetadataValue.float(round(seconds / len(scores) * 1000, 3)),
            "lance/queries": dg.MetadataValue.int(len(scores)),
            "lance/worst_queries": dg.MetadataValue.json(
                [{"query": query, self.measure: round(scores[query][self.measure], 4)} for query in worst]
            ),
        }
        reached = means[self.measure]
        sentence = f"{self.measure}@{self.k} is {reached:.3f} over {len(scores)} queries"
        if reached >= self.at_least:
            return CheckResult(True, sentence, metadata)
        lowest = scores[worst[0]][self.measure]
        return CheckResult(
            False, f"{sentence}, below {self.at_least:g}; the worst query is {worst[0]!r} with {lowest:.3f}", metadata
        )


def _check_expected(check: SearchCheck, expected: object) -> None:
    """Raise `InvalidInput` unless a labelled set has queries with expected rows."""
    if not isinstance(expected, Mapping) or not expected:
        raise check.declaration_error("queries= must be a mapping of queries to the rows that they should find")
    for query, rows in expected.items():
        if not isinstance(query, str) or isinstance(rows, str) or not isinstance(rows, Sequence) or not rows:
            raise InvalidInput(
                f"{type(check).__name__}({check.name!r}): the query {query!r} needs a list of expected rows"
            )


def _measures(found: Sequence[object], expected: Sequence[object], k: int) -> dict[str, float]:
    """Return NDCG and recall of one query. The gain of an expected row is 1. It is 0 for any other row, and for a row
    whose key has already occurred in the result, since keys may not be unique.

    >>> _measures([1, 2, 2], [2], 3)
    {'ndcg': 0.6309297535714575, 'recall': 1.0}
    """
    wanted, first_ranks = set(expected), {row: rank for rank, row in reversed(list(enumerate(found)))}
    gained = sum(1 / log2(rank + 2) for row, rank in first_ranks.items() if row in wanted)
    possible = sum(1 / log2(rank + 2) for rank in range(min(k, len(wanted))))
    return {"ndcg": gained / possible, "recall": len(wanted & set(found)) / min(k, len(wanted))}
