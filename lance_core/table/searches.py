"""Searches: the rows nearest to a vector, those that match a text best, and both together.

Each method builds a request and calls `index/` or `scan/`, whose modules are imported when a search needs them.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from lance_core.expressions.arrow_filters import Condition
from lance_core.scan.vector_search import Vector
from lance_core.table.base import TableBase
from lance_core.text import Query, TextRequest, column_names, parse_query


class Searches(TableBase):
    """Part of `Table` that searches vectors and texts."""

    def search(
        self,
        column: str,
        vector: Vector,
        k: int = 10,
        *,
        metric: Literal["l2", "cosine", "dot", "hamming"] | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
        ef: int | None = None,
        filter: Condition | None = None,
        columns: Sequence[str] | None = None,
        exact: bool = False,
    ) -> pa.Table:
        """Return the `k` rows whose vectors are nearest to `vector`, nearest first, with a column `_distance`. Rows at
        the same distance come in table order. `filter` restricts the candidates before the search. For a
        two-dimensional array of vectors, the rows of each one follow each other, and a column `_query` has its number.
        In a column of lists of vectors, such an array is one query, and a list of arrays is a batch.

            table.search("embedding", model.encode("a red bicycle"), 10, metric="cosine", filter="price < 100")

        A vector index on the column is used if its metric is `metric`. The result is then approximate: `nprobes`
        (default 20) partitions of each index segment are searched, and with `refine=n` the exact distances of `n * k`
        candidates decide. Rows that the index does not cover are compared exactly; `exact=True` compares all. `ef` is
        the number of candidates that a search in the graph of an IVF_HNSW index keeps. Small partitions, and those of
        which the filter allows few rows, are compared completely. The default metric is that of the index, else "l2"
        (squared), and "hamming" for bytes.

        >>> table.search("vec", [0.9, 0.1], 2, filter="price < 100", columns=["id"])["id"].to_pylist()
        [2, 1]
        """
        from lance_core.index.vector.search import SearchRequest, search

        return search(
            self._snapshot,
            vector,
            SearchRequest(column, k, metric, nprobes, refine, ef, self._optional_sql(filter), columns, exact),
        )

    def explain_search(
        self,
        column: str,
        k: int = 10,
        *,
        metric: Literal["l2", "cosine", "dot", "hamming"] | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
        ef: int | None = None,
        filter: Condition | None = None,
        exact: bool = False,
    ) -> str:
        """Return the plan of `search` as text: the index and its segments, partitions, candidates, refinement, the
        fragments that are scanned, and whether the result is exact. Nothing is searched.

        >>> table.explain_search("vec", 2).splitlines()[-1].split()
        ['answer', 'exact']
        """
        from lance_core.index.vector.search import SearchRequest, explain_search

        return explain_search(
            self._snapshot,
            SearchRequest(column, k, metric, nprobes, refine, ef, self._optional_sql(filter), None, exact),
        )

    def text_search(
        self,
        query: Query | str | Mapping[str, object],
        k: int = 10,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Condition | None = None,
        select: Sequence[str] | None = None,
        highlight: bool = False,
        exact: bool = False,
    ) -> pa.Table:
        """Return the `k` rows that match `query` best, best first, with a column `_score`: the BM25 score. Rows with
        equal scores come in table order. `filter` restricts the rows before the search.

            table.text_search("lance format", columns=["title", "body"], filter="year > 2020", select=["id", "title"])
            table.text_search(Boolean(must=[Match("lance")], must_not=[Phrase("fencing club")]))

        `query` is a text, whose words are searched, a query of `lance_core.text`, or the JSON form of pylance.
        `columns` are searched by the parts of the query that name no column; by default all columns with a full-text
        index. `select` are the columns of the result. `highlight=True` adds `_highlights`, the ranges of characters
        that matched. Rows that the index does not cover are read and scored with the same statistics; `exact=True`
        reads all rows, also of a column without an index.

        >>> table.text_search("oslo", columns="city", exact=True, select=["id"])["id"].to_pylist()
        [1]
        """
        from lance_core.index.text.text_search import search

        return search(self._snapshot, self._text_request(query, k, columns, filter, select, highlight, exact))

    def explain_text_search(
        self,
        query: Query | str | Mapping[str, object],
        k: int = 10,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Condition | None = None,
        exact: bool = False,
    ) -> str:
        """Return the plan of `text_search` as text: the query, and for each column its index and segments and the
        fragments that are scanned. Nothing is searched.

        >>> table.explain_text_search("oslo", columns="city").splitlines()[-1].split()[:2]
        ['answer', 'exact:']
        """
        from lance_core.index.text.text_search import explain_search

        return explain_search(self._snapshot, self._text_request(query, k, columns, filter, None, False, exact))

    def hybrid_search(
        self,
        column: str,
        vector: Vector,
        text: Query | str | Mapping[str, object],
        k: int = 10,
        *,
        columns: str | Sequence[str] | None = None,
        weights: Sequence[float] = (1.0, 1.0),
        candidates: int | None = None,
        filter: Condition | None = None,
        select: Sequence[str] | None = None,
        metric: Literal["l2", "cosine", "dot", "hamming"] | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
        ef: int | None = None,
        exact: bool = False,
    ) -> pa.Table:
        """Return the `k` rows that are best by `search` on a column of vectors and by `text_search` together, best
        first: the sum of `weight / (60 + rank)` over both results (reciprocal rank fusion), each of which has
        `candidates` rows (by default five for each of the `k`, at least 50). Both searches have the same filter.

            table.hybrid_search("embedding", model.encode(question), question, 10, columns="body", weights=(1, 2))

        The result has the `select` columns, `_score`, and `_distance` and `_text_score`, null for rows that only the
        other search found.

        >>> found = table.hybrid_search("vec", [0.9, 0.1], "oslo", 2, columns="city", exact=True, select=["id"])
        >>> found["id"].to_pylist()
        [1, 2]
        """
        from lance_core.index import hybrid_search

        count = hybrid_search.check_candidates(k, candidates)
        condition = self._optional_sql(filter)
        vectors = hybrid_search.SearchRequest(column, count, metric, nprobes, refine, ef, condition, None, exact)
        texts = self._text_request(text, count, columns, filter, None, False, exact)
        request = hybrid_search.HybridRequest(vectors, texts, int(k), hybrid_search.check_weights(weights), select)
        return hybrid_search.search(self._snapshot, vector, request)

    def _text_request(
        self,
        query: object,
        k: int,
        columns: str | Sequence[str] | None,
        filter: Condition | None,
        select: Sequence[str] | None,
        highlight: bool,
        exact: bool,
    ) -> TextRequest:
        searched = None if columns is None else column_names(columns, "columns")
        return TextRequest(parse_query(query), k, searched, self._optional_sql(filter), select, highlight, exact)

    def _optional_sql(self, filter: Condition | None) -> str | None:
        return None if filter is None else self._sql(filter, "filter")
