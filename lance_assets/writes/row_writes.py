"""Row writes: append, overwrite or upsert the rows of a DataFrame, or ingest files that Spark's tasks read
themselves.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from lance_assets.io_manager.partition_predicates import replace_predicate
from lance_assets.io_manager.partition_windows import check_windows
from lance_assets.resources.lance import resolve_nested_env_vars
from lance_assets.resources.literal_secrets import check_source_options
from lance_assets.spark import append, ingest, overwrite, upsert
from lance_assets.spark.types import stored_schema
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import accepted_values
from lance_assets.writes.write import Parameters, Rows, SparkWriteOptions, Write, substitute_parameters
from lance_core import Committed, NotFound, Table
from lance_core.tasks.credentials import contains_secret
from lance_core.tasks.ingest.sources import normalize_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_FRAME = "(spark, ctx) -> Spark DataFrame"


@dataclass(frozen=True, slots=True)
class SparkAppend(Write):
    """Append the rows that `fn` returns as one version."""

    fn: Rows
    summary: ClassVar[str] = "Appends rows to"
    context_arguments: ClassVar[int] = 2
    reports_progress: ClassVar[bool] = False

    def check(self) -> None:
        self.check_function(self.fn, signature=_FRAME)

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        rows = self.compute_rows(self.fn, ctx)
        return append(rows, ctx.table.uri, **ctx.table.creation(), **make_options())


@dataclass(frozen=True, slots=True)
class SparkOverwrite(Write):
    """Replace all rows, those of a partition, or those that match `where`, by the rows that `fn` returns.

    `SparkOverwrite("daily", fn, partitions=days, partition_expr="day")` replaces the rows of a partition, as
    `LanceIOManager` does; `partition_expr` is a column, or one for each dimension. `where="day = :partition_key"` is a
    condition over the text of the key. All new rows must be among those that are replaced.
    """

    fn: Rows
    where: str | None = None
    parameters: Parameters = field(default_factory=dict)
    replace_schema: bool = False
    partition_expr: str | Mapping[str, str] | None = None
    summary: ClassVar[str] = "Overwrites rows of"
    context_arguments: ClassVar[int] = 2

    def check(self) -> None:
        self.check_function(self.fn, signature=_FRAME)
        if self.where is not None and not self.where:
            raise self.declaration_error("where= is empty; give a condition, or leave it out to overwrite all rows")
        if self.partition_expr is not None:
            self._check_partition_expr()
        if (self.where or self.partition_expr) and self.replace_schema:
            raise self.declaration_error(
                "replace_schema=True needs an overwrite of all rows; with where= or partition_expr= the schema cannot "
                "change"
            )
        self.check_parameters(self.parameters, self.where)
        if self.partitions is None or self.partition_expr is not None:
            return
        if self.where is None:
            raise self.declaration_error(
                "each partition would overwrite all others; name their column, as in partition_expr='day'"
            )
        if not self.depends_on_partition(self.parameters, self.where):
            raise self.declaration_error(
                f"every partition would overwrite the same rows, those where {self.where}; select the rows of the "
                "partition, as in where='day = :partition_key', or use a parameter that is a function of the context"
            )

    def _check_partition_expr(self) -> None:
        if self.partitions is None:
            raise self.declaration_error("partition_expr= needs partitions=")
        if self.where is not None:
            raise self.declaration_error("partition_expr= selects the rows of a partition; leave out where=")
        check_windows(self.partitions, f"{type(self).__name__}({self.name!r})")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        where = None if self.where is None else substitute_parameters(self.where, self.parameters, ctx)
        rows = self.compute_rows(self.fn, ctx)
        if self.partition_expr is not None:
            where = self._partition_slice(ctx, rows)
        return overwrite(
            rows,
            ctx.table.uri,
            where=where,
            replace_schema=self.replace_schema,
            **ctx.table.creation(),
            **make_options(),
        )

    def _partition_slice(self, ctx: WriteContext, rows: "DataFrame") -> str:
        """Return the condition for the rows of the partition, whose key is a value of the table's column, or of the
        frame's if the table does not exist yet."""
        assert self.partitions is not None
        assert self.partition_expr is not None
        try:
            schema = Table.open(ctx.table.uri, **ctx.table.access()).schema
        except NotFound:
            schema = stored_schema(rows.schema)
        return replace_predicate(
            self.partitions,
            ctx.partition_keys,
            self.partition_expr,
            schema,
            subject=self.name,
            list_keys=lambda each: each.get_partition_keys(dynamic_partitions_store=ctx.dagster.instance),
        )


@dataclass(frozen=True, slots=True)
class SparkUpsert(Write):
    """Upsert the rows that `fn` returns by the key columns `on`. The options are those of
    `lance_assets.spark.upsert`."""

    fn: Rows
    on: str | Sequence[str]
    matched: str = "update"
    matched_if: str | None = None
    insert: bool = True
    delete_unmatched: bool | str | None = False
    summary: ClassVar[str] = "Upserts rows into"
    context_arguments: ClassVar[int] = 2

    def check(self) -> None:
        self.check_function(self.fn, signature=_FRAME)
        if not self.on:
            raise self.declaration_error("on= is empty; name the key columns")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        rows = self.compute_rows(self.fn, ctx)
        return upsert(
            rows,
            ctx.table.uri,
            self.on,
            matched=self.matched,
            matched_if=self.matched_if,
            insert=self.insert,
            delete_unmatched=self.delete_unmatched,
            **make_options(),
        )


@dataclass(frozen=True, slots=True)
class SparkIngest(Write):
    """Ingest the files that the table has not ingested yet; Spark's tasks read them. `files` may be a function of the
    context, so that it can depend on the partition. `on_bad_record` is "fail" or the URI of a table for records that
    cannot become rows. `source_options` configure access to the files as in `ingest`; a secret among them is a
    `dagster.EnvVar` or `env:NAME`."""

    files: Files | Callable[..., Files]
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    extra: str = "refuse"
    on_bad_record: str = "fail"
    changed: str = "fail"
    source_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    summary: ClassVar[str] = "Ingests new files into"
    context_arguments: ClassVar[int] = 1

    def check(self) -> None:
        if not self.files:
            raise self.declaration_error("files= is empty; name at least one file, directory or glob")
        check_source_options(self.source_options, f"source_options= of {self.name}")
        named = [] if callable(self.files) else normalize_files(self.files)
        if any(map(contains_secret, (*named, self.on_bad_record))):
            raise self.declaration_error(
                "a location contains a password or a signature; pass what the store needs as source_options="
            )

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        files = self.files
        if callable(files):
            files = files(ctx, **accepted_values(files, self.context_arguments, ctx.input_values))
        return ingest(
            ctx.spark,
            files,
            ctx.table.uri,
            format=self.format,
            mapping=self.mapping or None,
            extra=self.extra,  # type: ignore[arg-type]  # `ingest` refuses other values
            on_bad_record=self.on_bad_record,
            changed=self.changed,  # type: ignore[arg-type]
            source_options={
                name: resolve_nested_env_vars(value, f"the source option {name!r} of {self.name}")
                for name, value in self.source_options.items()
            }
            or None,
            **ctx.table.creation(),
            **make_options(),
        )
