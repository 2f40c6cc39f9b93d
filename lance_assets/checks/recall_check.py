"""Recall check: the share of the nearest rows that searches of a vector index find, for each version of a table.

The rows that a search finds are compared with the nearest of all rows. Numbers appear as plots over the versions, and
the curve of recall over partitions as a picture. A check that fails names the version that lowered the recall.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_assets.checks.recall import Answer, Query, QueryFunction, RecallProbe, sample_queries
from lance_assets.diagrams.recall_curve import draw_recall_curve
from lance_assets.provenance.properties import RUN_ID
from lance_core import IndexStatistics, InvalidInput, LanceError, Table

_NPROBES = 20
"""Partitions that a search visits by default."""
_VERSIONS_MAX = 64
"""Earlier versions among which the check searches for the one after which the recall fell."""


@dataclass(frozen=True, slots=True)
class RecallCheck(Check):
    """Searches by the vector index on a column find at least a share of the `k` nearest rows (recall@k).

        RecallCheck("embedding", k=10, at_least=0.95, nprobes=16, refine=10)
        RecallCheck("embedding", queries=load_questions)

    `nprobes` and `refine` are those with which the table is searched. The queries are the vectors of `sample` random
    rows, which do not count themselves, or `queries`: a list of vectors, or a function from the table to one. Questions
    of users are the better measure where they differ from the rows. In a column of lists of vectors, a query is such a
    list, or one vector.

    The metadata have the recall, the milliseconds of a query, the share of rows without an index, the smallest
    `nprobes` that reaches `at_least`, and the curve of recall and time over `nprobes` as a picture. A check that fails
    names the version, operation and run after which the recall fell. As an audit of a write, it keeps a version below
    `at_least` from being published. It compares the queries with every vector of the version: in this process, or on
    the workers of the active Spark session if the vectors have more than a billion numbers.
    """

    name: str = field(default="recall", kw_only=True)
    column: str
    k: int = 10
    at_least: float = 0.95
    queries: QueryFunction | Sequence[Query] | None = None
    sample: int = 200
    nprobes: int | None = None
    refine: int | None = None

    def check(self) -> None:
        column: object = self.column
        if not isinstance(column, str) or not column:
            raise self.declaration_error(f"column= must be the name of a column of vectors, not {column!r}")
        share: object = self.at_least
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise self.declaration_error(f"at_least= must be a recall above 0 and up to 1, not {share!r}")
        for option in ("k", "sample", "nprobes", "refine"):
            number: object = getattr(self, option)
            if number is None and option in ("nprobes", "refine"):
                continue
            if type(number) is not int or number < 1:
                raise self.declaration_error(f"{option}= must be a whole number from 1, not {number!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        how = f"nprobes={self.nprobes or _NPROBES}" + (f", refine={self.refine}" if self.refine else "")
        return f"Searches of {self.column} find {self.at_least:.1%} of the {self.k} nearest rows ({how})."

    def judge(self, context: CheckContext) -> CheckResult:
        table, used = context.table, self.nprobes or _NPROBES
        index = self._index_of(table)
        if index is None:
            table.to_table(columns=[self.column], limit=0)  # raises for a column that the table does not have
            return CheckResult(True, f"there is no vector index on {self.column}: searches compare every vector")
        queries = sample_queries(table, self.column, self.queries, self.sample)
        if not len(queries.vectors):
            return CheckResult(True, f"no row has a vector in {self.column}")
        probe = RecallProbe(table, queries, self.column, self.k, self.refine)
        curve = probe.curve(self.at_least, used)
        point = next(each for each in curve if each.nprobes == used)
        recommended = next((each.nprobes for each in curve if each.recall >= self.at_least), None)
        uncovered = 1 - index.live_coverage
        title = f"{self.column}, {index.kind}, version {table.version}"
        picture = draw_recall_curve(
            curve, k=self.k, target=self.at_least, used=used, recommended=recommended, title=title
        )
        metadata: dict[str, dg.MetadataValue] = {
            "lance/recall": dg.MetadataValue.float(round(point.recall, 4)),
            "lance/search_milliseconds": dg.MetadataValue.float(round(probe.latency(used), 3)),
            "lance/uncovered_share": dg.MetadataValue.float(round(uncovered, 6)),
            "lance/queries": dg.MetadataValue.int(len(queries.vectors)),
            "lance/recall_curve": dg.MetadataValue.md(picture.markdown(f"recall of {self.column} by nprobes")),
        }
        if recommended is not None:
            metadata["lance/recommended_nprobes"] = dg.MetadataValue.int(recommended)
        sentence = f"recall@{self.k} is {point.recall:.3f} with nprobes={used}" + (
            f" and refine={self.refine}" if self.refine else ""
        )
        if uncovered > 0:
            sentence += f"; {uncovered:.1%} of the rows are not in the index and are compared one by one"
        if point.recall >= self.at_least:
            return CheckResult(True, sentence, metadata)
        fell = self._describe_decline(context)
        return CheckResult(
            False, f"{sentence}, below {self.at_least:g}; {self._advice(used, recommended)}{fell}", metadata
        )

    def _advice(self, used: int, recommended: int | None) -> str:
        if recommended is not None and recommended > used:
            return f"nprobes={recommended} reaches it"
        if self.refine is None:
            return "no nprobes reaches it without refine; search with refine=10"
        return "no nprobes reaches it; rebuild the index with replace=True, or with more num_sub_vectors"

    def _index_of(self, table: Table) -> IndexStatistics | None:
        """Return the vector index on the column with the largest coverage."""
        indices = [
            each
            for each in table.index_statistics()
            if each.column == self.column and each.kind.upper().startswith(("IVF", "VECTOR"))
        ]
        return max(indices, key=lambda each: each.live_coverage, default=None)

    def _describe_decline(self, context: CheckContext) -> str:
        """Return which version lowered the recall, found by bisection of the earlier versions that exist."""
        if context.parent is None:
            return ""
        try:
            return self._find_decline(context.table, context.parent)
        except (LanceError, InvalidInput):  # an earlier version may have another column, or be removed meanwhile
            return ""

    def _find_decline(self, table: Table, parent: Table) -> str:
        earlier = [number for number in parent.version_numbers() if number <= parent.version][-_VERSIONS_MAX:]
        recalls: dict[int, float | None] = {}
        known: dict[bytes, list[Answer]] = {}

        def passes(number: int) -> bool:
            recalls[number] = self._recall_of(parent.at(number), known)
            return (recalls[number] or 0.0) >= self.at_least

        if not earlier or not any(passes(number) for number in (earlier[-1], earlier[0])):
            measured = [recall for recall in recalls.values() if recall is not None]
            return f"; it was {max(measured):.3f} at most in the earlier versions" if measured else ""
        if passes(earlier[-1]):
            return f". It was {recalls[earlier[-1]]:.3f} in version {earlier[-1]}, before {_described(table)}"
        good, bad = 0, len(earlier) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if passes(earlier[middle]) else (good, middle)
        return (
            f". It fell from {recalls[earlier[good]]:.3f} in version {earlier[good]} to "
            f"{recalls[earlier[bad]] or 0:.3f} in version {earlier[bad]}: {_described(parent.at(earlier[bad]))}"
        )

    def _recall_of(self, table: Table, known: dict[bytes, list[Answer]]) -> float | None:
        """Return the recall of an earlier version; `None` if it has no rows to compare. Versions with the same rows
        share their exact answers."""
        if self.column not in table.schema.names:
            return None
        queries = sample_queries(table, self.column, self.queries, self.sample)
        if not len(queries.vectors):
            return None
        probe = RecallProbe(table, queries, self.column, self.k, self.refine, known)
        return probe.measure(self.nprobes or _NPROBES).recall


def _described(table: Table) -> str:
    """Return the operation and the run that made a version."""
    info = table.version_info()
    run = info.properties.get(RUN_ID)
    return f"{info.action} by {f'run {run}' if run else info.writer or 'an unknown writer'}"
