"""Writes that build indices, and keep them up. Rows stay as they are, so that a version of theirs has the same ones."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from lance_assets.ledger.index_metadata import Metadata, metadata_of_index
from lance_assets.spark import build_index, optimize_indices
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, LanceError, Table
from lance_core.tasks import index_build
from lance_core.tasks.index_build import IndexRequest

_NON_WORD = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SparkBuildIndex(Write):
    """There is an index of this kind on this column, and it covers every row.

        SparkBuildIndex("user", "BTREE")
        SparkBuildIndex("address.city", "BITMAP", index="by_city", name="cities")

    The first run builds it. Each one after that reads what is not covered yet, and no more: rows that came since become
    a segment of the index, together with segments that are small, and where all is covered there is no new version. So
    a run every day costs what a day brings. Where the index that is there is of another kind, or was built with other
    `params` than are given, it is built anew; queries use the old one until then. One of this name that is on another
    column is refused.

    `index` is its name in the table, `<column>_idx` as Lance has it; `name` is that of the asset, and
    `<table>_index_<column>` unless it is given. `params` are what the kind may be told, as `{"rows_per_zone": 4096}`.
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
            raise self.declaration_error(f"column= is the path of the column that is indexed, not {self.column!r}")
        params: object = self.params
        if not isinstance(params, Mapping):
            raise self.declaration_error(f"params= are names with values, not {params!r:.100}")
        try:
            index_build.check(self._request)
        except InvalidInput as error:
            raise self.declaration_error(str(error)) from None

    def for_table(self, table: str) -> "SparkBuildIndex":
        if self.name:
            return self
        return replace(self, name=_NON_WORD.sub("_", f"{table}_index_{self.column}").rstrip("_"))

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        asked = self._request
        return build_index(
            ctx.spark,
            ctx.table.uri,
            asked.column,
            asked.kind,
            name=asked.name,
            only="needed",
            **make_options(),
            **asked.params,  # type: ignore[arg-type]  # which were looked at, and are none of the options above
        )

    def metadata_of(self, table: Table) -> Metadata:
        try:
            found = [each for each in table.index_statistics() if each.name == self.index_name]
        except LanceError:
            return {}  # the version is there, whatever else its indices are
        return metadata_of_index(found[0]) if found else {}

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
    """Cover with all indices, or those of some `indices`, what they do not cover yet, make one of small segments, and
    write those anew whose rows a compaction moved. A table's maintenance does it when it is due."""

    indices: Sequence[str] | None = None
    merge: Literal["small", "all", "none"] = "small"
    summary: ClassVar[str] = "Keeps up the indices of"
    commits_several_versions: ClassVar[bool] = True

    def check(self) -> None:
        if isinstance(self.indices, str):
            raise self.declaration_error(f"indices={self.indices!r} is one text; give a list of names, or none for all")
        if self.merge not in ("small", "all", "none"):
            raise self.declaration_error(f"merge is 'small', 'all' or 'none', not {self.merge!r}")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        asked = make_options()
        return optimize_indices(
            ctx.spark,
            ctx.table.uri,
            self.indices,
            merge=self.merge,
            intent=asked["intent"],
            properties=asked["properties"],
            **ctx.table.access(),
        )
