"""Index writes: build indices and maintain them. They never change rows, so a version of theirs has the rows of its
parent.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lance_assets.ledger.index_metadata import Metadata, metadata_of_index
from lance_assets.spark import build_index, optimize_indices
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, LanceError, Table
from lance_core.tasks.indices import index_build
from lance_core.tasks.indices.index_build import IndexRequest

_NON_WORD = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SparkBuildIndex(Write):
    """Ensure that an index of this type exists on this column and covers every row.

        SparkBuildIndex("user", "BTREE")
        SparkBuildIndex("address.city", "BITMAP", index="by_city", name="cities")

    The first run builds the index. Each later run reads only the rows that it does not cover yet: the new rows become
    a segment, which is merged with small segments, and if all rows are covered the run commits no version. A daily
    run therefore costs as much as a day's new rows. If the existing index has another type or other values of the
    given `params`, the run rebuilds it; queries use the old index until then. An index of this name on another column
    is refused.

    `index` is the name of the index in the table; the default is `<column>_idx`, as in Lance. `name` is the name of
    the asset; the default is `<table>_index_<column>`. `params` are the parameters of the index type, such as
    `{"rows_per_zone": 4096}`.
    """

    name: str = field(default="", kw_only=True)
    column: str
    kind: str
    index: str | None = field(default=None, kw_only=True)
    params: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    summary: ClassVar[str] = "Builds an index of"
    is_named_by_its_table: ClassVar[bool] = True

    def check(self) -> None:
        if not self.column:
            raise self.declaration_error(f"column= must be the path of the column to index, not {self.column!r}")
        params: object = self.params
        if not isinstance(params, Mapping):
            raise self.declaration_error(f"params= must be a mapping of parameter names to values, not {params!r:.100}")
        try:
            index_build.check_params(self._request)
        except InvalidInput as error:
            raise self.declaration_error(str(error)) from None

    def for_table(self, table: str) -> "SparkBuildIndex":
        if self.name:
            return self
        return self.with_options(name=_NON_WORD.sub("_", f"{table}_index_{self.column}").rstrip("_"))

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        request = self._request
        return build_index(
            ctx.spark,
            ctx.table.uri,
            request.column,
            request.kind,
            name=request.name,
            only="needed",
            **make_options(),
            **request.params,  # type: ignore[arg-type]  # validated above; their names differ from these options
        )

    def metadata_of(self, table: Table) -> Metadata:
        try:
            statistics = [each for each in table.index_statistics() if each.name == self.index_name]
        except LanceError:
            return {}  # the version is committed; unreadable index metadata must not fail the step
        return metadata_of_index(statistics[0]) if statistics else {}

    @property
    def index_name(self) -> str:
        return f"{self.column}_idx" if self.index is None else self.index

    def declaration_error(self, reason: str) -> InvalidInput:
        return InvalidInput(f"SparkBuildIndex({(self.name or self.column)!r}): {reason}")

    @property
    def _request(self) -> IndexRequest:
        return IndexRequest(self.column, self.kind, self.index_name, params=dict(self.params))


@dataclass(frozen=True, slots=True)
class SparkOptimizeIndices(Write):
    """Maintain all indices, or the named `indices`: index uncovered rows, merge small segments, and rewrite segments
    whose rows a compaction moved. The maintenance asset of a table does the same when it is due."""

    indices: Sequence[str] | None = None
    merge: Literal["small", "all", "none"] = "small"
    summary: ClassVar[str] = "Keeps up the indices of"
    commits_several_versions: ClassVar[bool] = True

    def check(self) -> None:
        if isinstance(self.indices, str):
            raise self.declaration_error(
                f"indices={self.indices!r} is a text; give a list of names, or omit it for all"
            )
        if self.merge not in ("small", "all", "none"):
            raise self.declaration_error(f"merge must be 'small', 'all' or 'none', not {self.merge!r}")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        options = make_options()
        return optimize_indices(
            ctx.spark,
            ctx.table.uri,
            self.indices,
            merge=self.merge,
            intent=options["intent"],
            properties=options["properties"],
            **ctx.table.access(),
        )
