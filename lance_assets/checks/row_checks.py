"""What rows can be asked: whether keys are unique, and how many values are missing. The columns asked about are read, a
batch at a time, and no others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow as pa

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_assets.checks.duplicates import check_key_columns, find_duplicates
from lance_core import Table

_SHOWN = 5
_VALUE_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnique(Check):
    """No two rows have the same values in these columns. Every row is looked at, in bounded memory. A row with a null
    there equals none, as in an upsert; say `Nulls` where there should be none.

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
        found = find_duplicates(lambda: context.table.to_batches(list(self.columns)), shown_max=_SHOWN + 1)
        nulls = f", {found.with_null:,} of them with a null and not compared" if found.with_null else ""
        rows = f"{found.rows:,} row{'' if found.rows == 1 else 's'}{nulls}"
        if not found.keys:
            return CheckResult(
                True, f"no key is there twice in {rows}", {"lance/rows": dg.MetadataValue.int(found.rows)}
            )
        shown = [self._key_text(key) for key in found.keys[:_SHOWN]]
        more = ", and more" if len(found.keys) > _SHOWN else ""
        return CheckResult(
            False,
            f"{len(shown)} key{'s are' if len(shown) > 1 else ' is'} there more than once in {rows}: "
            f"{'; '.join(shown)}{more}",
            {"lance/rows": dg.MetadataValue.int(found.rows), "lance/keys": dg.MetadataValue.json(shown)},
        )

    def _key_text(self, values: Sequence[object]) -> str:
        return ", ".join(f"{name}={_value_text(value)}" for name, value in zip(self.columns, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nulls(Check):
    """Of the values of each of these columns at most so large a share is null: none, unless told otherwise. A column
    may be a field of a struct, `address.city`.

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
            raise self.declaration_error(f"max_share= is a share from 0 to below 1, not {share!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        most = "No value" if not self.max_share else f"At most {self.max_share:.2%} of the values"
        return f"{most} of {', '.join(self.columns)} is null."

    def judge(self, context: CheckContext) -> CheckResult:
        rows = context.table.count_rows()
        counted = count_nulls(context.table, self.columns)
        told = {f"lance/nulls/{name}": dg.MetadataValue.int(count) for name, count in counted.items()}
        bad = [name for name, count in counted.items() if count > self.max_share * rows]
        if bad:
            sentences = [f"{name!r} has {counted[name]:,} ({counted[name] / rows:.2%})" for name in bad]
            allowed = f"at most {self.max_share:.2%} may be null" if self.max_share else "none should be null"
            return CheckResult(False, f"of {rows:,} values {'; '.join(sentences)} nulls, and {allowed}", told)
        total = sum(counted.values())
        return CheckResult(True, f"{total:,} nulls in {rows:,} rows" if total else f"no nulls in {rows:,} rows", told)


def count_nulls(table: Table, columns: Sequence[str]) -> dict[str, int]:
    """What the schema rules out is not read."""
    counts = dict.fromkeys(columns, 0)
    wanted = [name for name in columns if _may_be_null(table.schema, name)]
    if wanted:
        for batch in table.to_batches(wanted):
            for name, column in zip(wanted, batch.columns, strict=True):
                counts[name] += column.null_count
    return counts


def _may_be_null(schema: pa.Schema, name: str) -> bool:
    return name not in schema.names or bool(schema.field(name).nullable)


def _check_columns(check: Check, columns: Sequence[object]) -> None:
    if isinstance(columns, str) or not columns or not all(isinstance(each, str) and each for each in columns):
        raise check.declaration_error(f"columns= is a list of names, not {columns!r}")
    if len(set(columns)) < len(columns):
        raise check.declaration_error(f"columns= names a column twice: {columns!r}")


def _value_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN else text[:_VALUE_SHOWN] + "…"
