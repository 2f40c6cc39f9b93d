"""Custom checks: rules that a project defines itself, as an SQL query or as a Python function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import dagster as dg
import pyarrow as pa

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_core import InvalidInput

_ROWS_SHOWN = 5
_VALUE_SHOWN = 200
CheckFunction = Callable[[CheckContext], "CheckResult | bool"]


@dataclass(frozen=True, slots=True)
class SqlCheck(Check):
    """Check by an SQL query, in which the checked version of the table is called `dataset`. The check passes if the
    query returns no rows: its rows are the violations. With `expect="true"`, the query returns one boolean, and the
    check passes if that is true; it fails for null.

        SqlCheck("amounts", "select id from dataset where amount < 0")
        SqlCheck("one_each", "select id from dataset group by id having count(*) > 1")
        SqlCheck("mean", "select avg(amount) between 1 and 90 from dataset", expect="true")
    """

    sql: str
    expect: Literal["no rows", "true"] = "no rows"

    def check(self) -> None:
        sql: object = self.sql
        if not isinstance(sql, str) or not sql.strip():
            raise self.declaration_error("sql= must be a query, such as 'select id from dataset where amount < 0'")
        if self.expect not in ("no rows", "true"):
            raise self.declaration_error(f"expect= must be 'no rows' or 'true', not {self.expect!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        expectation = "returns no rows" if self.expect == "no rows" else "is true"
        return f"`{' '.join(self.sql.split())}` {expectation}."

    def judge(self, context: CheckContext) -> CheckResult:
        answer = context.table.query(self.sql, limit=_ROWS_SHOWN + 1)
        return self._expect_true(answer) if self.expect == "true" else self._expect_no_rows(answer)

    def _expect_true(self, answer: pa.Table) -> CheckResult:
        if answer.shape != (1, 1) or not pa.types.is_boolean(answer.schema.field(0).type):
            raise InvalidInput(
                f"with expect='true' the query must return one boolean, and it returned {_describe_shape(answer)}; "
                "leave expect= out if the rows of the query are the violations"
            )
        value = answer.column(0)[0].as_py()
        return CheckResult(value is True, f"the query returned {_value_text(value)}")

    def _expect_no_rows(self, answer: pa.Table) -> CheckResult:
        if not answer.num_rows:
            return CheckResult(True, "the query returned no rows")
        more = answer.num_rows > _ROWS_SHOWN
        rows = answer.slice(0, _ROWS_SHOWN)
        count = f"more than {_ROWS_SHOWN} rows" if more else f"{rows.num_rows} row{'s' if rows.num_rows > 1 else ''}"
        is_one_boolean = answer.shape == (1, 1) and pa.types.is_boolean(answer.schema.field(0).type)
        hint = "; if this value should be true, set expect='true'" if is_one_boolean else ""
        return CheckResult(
            False,
            f"the query returned {count}, the first: {_row_text(rows)}{hint}",
            {"lance/rows": metadata_table(rows)},
        )


@dataclass(frozen=True, slots=True)
class FunctionCheck(Check):
    """Check by a Python function, which receives the `CheckContext` of the version and returns a `CheckResult` or a
    boolean. `reads_rows=False` declares that the function reads manifests only, so that the check is also evaluated
    when a sensor discovers a version.

        FunctionCheck("has_index", lambda context: bool(context.table.indices), reads_rows=False)
    """

    fn: CheckFunction
    reads_rows: bool = True

    def check(self) -> None:
        if not callable(self.fn):
            raise self.declaration_error("fn= must be a function: fn(context: CheckContext) -> CheckResult or bool")

    @property
    def reads_data(self) -> bool:
        return self.reads_rows

    @property
    def description(self) -> str:
        first_line = (getattr(self.fn, "__doc__", None) or "").strip().partition("\n")[0]
        return first_line or f"{getattr(self.fn, '__qualname__', type(self.fn).__name__)}() returns true."

    def judge(self, context: CheckContext) -> CheckResult:
        answer = self.fn(context)
        if isinstance(answer, CheckResult):
            return answer
        if isinstance(answer, bool):
            return CheckResult(
                answer, self.description if answer else f"{self.name}() returned false: {self.description}"
            )
        raise InvalidInput(f"the function of {self.name} must return a CheckResult, True or False, not {answer!r:.200}")


def lance_check(
    name: str | None = None, *, severity: Severity = Severity.ERROR, reads_rows: bool = True
) -> Callable[[CheckFunction], FunctionCheck]:
    """Return a decorator that turns a function into a check. The name of the check is `name`, or that of the function.

    @lance_check(severity=Severity.WARN)
    def has_index(context: CheckContext) -> bool: ...
    """

    def decorate(fn: CheckFunction) -> FunctionCheck:
        function_name: str = getattr(fn, "__name__", "check")
        return FunctionCheck(name or function_name, fn, reads_rows, severity=severity)

    if callable(name):  # @lance_check without parentheses
        raise InvalidInput("write @lance_check() with parentheses")
    return decorate


def metadata_table(rows: pa.Table) -> dg.MetadataValue:
    """Return the rows as a Dagster table, with each value as text of limited length."""
    columns = [dg.TableColumn(name) for name in rows.column_names]
    records = [dg.TableRecord({name: _value_text(value) for name, value in row.items()}) for row in rows.to_pylist()]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _row_text(rows: pa.Table) -> str:
    first = rows.slice(0, 1).to_pylist()[0]
    return ", ".join(f"{name}={_value_text(value)}" for name, value in list(first.items())[:_ROWS_SHOWN])


def _describe_shape(answer: pa.Table) -> str:
    if answer.num_rows > _ROWS_SHOWN:
        return f"more than {_ROWS_SHOWN} rows of {answer.num_columns} columns"
    types = ", ".join(str(field.type) for field in answer.schema)
    return f"{answer.num_rows} row(s) of {answer.num_columns} column(s) ({types})"


def _value_text(value: object) -> str:
    text = "null" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= _VALUE_SHOWN else text[:_VALUE_SHOWN] + "…"
