"""Row checks: unique keys and null values. They read the checked columns only, one batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow as pa

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_assets.checks.duplicates import check_key_columns, find_duplicates
from lance_assets.common.text import format_count
from lance_core import Table

_SHOWN = 5
_VALUE_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnique(Check):
    """No two rows have the same values in these columns. The check reads every row, in bounded memory. As in an
    upsert, a row with a null in its key equals no other row; use `Nulls` to forbid nulls.

        KeysUnique(columns=["id"])
    """

    name: str = "keys_unique"
    columns: Sequence[str]

    def check(self) -> None:
        _check_columns(self, self.columns)

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return f"No two rows have the same {', '.join(self.columns)}."

    def judge(self, context: CheckContext) -> CheckResult:
        check_key_columns(context.table.schema, self.columns)
        duplicates = find_duplicates(lambda: context.table.to_batches(list(self.columns)), shown_max=_SHOWN + 1)
        nulls = f", {duplicates.with_null:,} of them with a null and not compared" if duplicates.with_null else ""
        rows = f"{duplicates.rows:,} row{'' if duplicates.rows == 1 else 's'}{nulls}"
        if not duplicates.keys:
            return CheckResult(
                True, f"no duplicate key in {rows}", {"lance/rows": dg.MetadataValue.int(duplicates.rows)}
            )
        shown = [self._key_text(key) for key in duplicates.keys[:_SHOWN]]
        more = ", and more" if len(duplicates.keys) > _SHOWN else ""
        return CheckResult(
            False,
            f"{len(shown)} key{'s occur' if len(shown) > 1 else ' occurs'} more than once in {rows}: "
            f"{'; '.join(shown)}{more}",
            {"lance/rows": dg.MetadataValue.int(duplicates.rows), "lance/keys": dg.MetadataValue.json(shown)},
        )

    def _key_text(self, values: Sequence[object]) -> str:
        return ", ".join(f"{name}={_value_text(value)}" for name, value in zip(self.columns, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nulls(Check):
    """At most a share of the values of each of these columns is null; by default none may be. A column may be a field
    of a struct, `address.city`.

        Nulls(columns=["id", "address.city"])
        Nulls(name="few_scores", columns=["score"], max_share=0.05)
    """

    name: str = "nulls"
    columns: Sequence[str]
    max_share: float = 0.0

    def check(self) -> None:
        _check_columns(self, self.columns)
        share: object = self.max_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise self.declaration_error(f"max_share= must be a share of at least 0 and below 1, not {share!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        most = "No value" if not self.max_share else f"At most {self.max_share:.2%} of the values"
        return f"{most} of {', '.join(self.columns)} is null."

    def judge(self, context: CheckContext) -> CheckResult:
        rows = context.table.count_rows()
        nulls = count_nulls(context.table, self.columns)
        metadata = {f"lance/nulls/{name}": dg.MetadataValue.int(count) for name, count in nulls.items()}
        exceeded = [name for name, count in nulls.items() if count > self.max_share * rows]
        if exceeded:
            sentences = [
                f"{name!r} has {format_count(nulls[name], 'null')} ({nulls[name] / rows:.2%})" for name in exceeded
            ]
            allowed = f"at most {self.max_share:.2%} may be null" if self.max_share else "none may be null"
            return CheckResult(False, f"in {rows:,} rows {'; '.join(sentences)}, and {allowed}", metadata)
        total = sum(nulls.values())
        return CheckResult(
            True, f"{total:,} nulls in {rows:,} rows" if total else f"no nulls in {rows:,} rows", metadata
        )


def count_nulls(table: Table, columns: Sequence[str]) -> dict[str, int]:
    """Count the nulls of each column. Columns that cannot be null by the schema are not read."""
    counts = dict.fromkeys(columns, 0)
    nullable = [name for name in columns if _may_be_null(table.schema, name)]
    if nullable:
        for batch in table.to_batches(nullable):
            for name, column in zip(nullable, batch.columns, strict=True):
                counts[name] += column.null_count
    return counts


def _may_be_null(schema: pa.Schema, name: str) -> bool:
    return name not in schema.names or bool(schema.field(name).nullable)


def _check_columns(check: Check, columns: Sequence[object]) -> None:
    if isinstance(columns, str) or not columns or not all(isinstance(name, str) and name for name in columns):
        raise check.declaration_error(f"columns= must be a list of names, not {columns!r}")
    if len(set(columns)) < len(columns):
        raise check.declaration_error(f"columns= names a column twice: {columns!r}")


def _value_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN else text[:_VALUE_SHOWN] + "…"
