"""What became of a fleet: one report over all its tables, as Dagster's pages show it and as JSON for scripts.

Pure: facts in, metadata out. Messages are those of the core, which hold no secret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

import dagster as dg

from lance_assets.common.text import escape_markdown
from lance_assets.ledger.version_metadata import Metadata

_SHOWN_MAX = 100
"""Tables in the Markdown and in the table of the page: what does not fit is in the JSON."""
_JSON_MAX = 5_000
_MESSAGE_MAX = 500
_SUMMED = ("fragments", "files", "bytes", "deleted_rows", "index_rows_uncovered", "index_segments")


class TableOutcome(StrEnum):
    IN_SHAPE = "in shape"
    MAINTAINED = "maintained"
    DEFERRED = "deferred"
    """A run is writing it."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It is no table, or cannot be opened."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a table at a version."""

    version: int
    rows: int
    deleted_rows: int
    fragments: int
    files: int
    bytes: int
    index_rows_uncovered: int = 0
    """Of all indices together, as far as they can be looked after."""
    index_segments: int = 0


@dataclass(slots=True)
class TableReport:
    uri: str
    fate: TableOutcome = TableOutcome.IN_SHAPE
    due: tuple[str, ...] = ()
    before: Figures | None = None
    after: Figures | None = None
    compacted: bool = False
    indexed: bool = False
    """Whether its indices were kept up."""
    versions_removed: int = 0
    files_removed: int = 0
    """Orphans included."""
    bytes_removed: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)
    """Versions old enough to go, and what keeps them."""
    message: str = ""

    @property
    def has_changed(self) -> bool:
        """Whether it has other versions than before, as far as it was looked after."""
        return bool(self.compacted or self.indexed or self.versions_removed)

    def add_failure(self, error: Exception) -> None:
        """A later one adds to an earlier one."""
        said = str(error) or type(error).__name__
        self.fate, self.message = TableOutcome.FAILED, f"{self.message}; {said}"[:_MESSAGE_MAX].removeprefix("; ")

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value not in ((), "", {}, None, 0, False)}


@dataclass(frozen=True, slots=True)
class FleetReport:
    prefix: str
    tables: Sequence[TableReport]
    planning_seconds: float
    jobs: int
    """Of Spark: one for all compactions, some for each table whose indices were kept up; more where one was lost."""

    def tables_with(self, fate: TableOutcome) -> list[TableReport]:
        return [table for table in self.tables if table.fate is fate]

    @property
    def metadata(self) -> Metadata:
        value = dg.MetadataValue
        told = self._notable_tables()
        numbers = {
            "lance/tables": len(self.tables) - len(self.tables_with(TableOutcome.SKIPPED)),
            **{f"lance/tables_{fate.name.lower()}": len(self.tables_with(fate)) for fate in TableOutcome},
            "lance/tables_compacted": sum(table.compacted for table in self.tables),
            "lance/tables_indexed": sum(table.indexed for table in self.tables),
            "lance/versions_removed": sum(table.versions_removed for table in self.tables),
            "lance/files_removed": sum(table.files_removed for table in self.tables),
            "lance/bytes_removed": sum(table.bytes_removed for table in self.tables),
            **self._sums(),
            "lance/spark_jobs": self.jobs,
        }
        rows = [dg.TableRecord(_report_row(table)) for table in told[:_SHOWN_MAX]]
        everything = [table.as_json() for table in [*told, *self.tables_with(TableOutcome.IN_SHAPE)][:_JSON_MAX]]
        return {
            "lance/report": value.md(self.markdown),
            **({"lance/report_table": value.table(rows)} if rows else {}),
            "lance/report_json": value.json({"prefix": self.prefix, "tables": everything}),
            "lance/planning_seconds": value.float(round(self.planning_seconds, 3)),
            **{name: value.int(number) for name, number in numbers.items()},
        }

    @property
    def markdown(self) -> str:
        counts = ", ".join(f"{len(self.tables_with(fate))} {fate}" for fate in TableOutcome if self.tables_with(fate))
        lines = [f"**{len(self.tables)} tables below `{self.prefix}`**: {counts or 'none'}", ""]
        told = self._notable_tables()
        if told:
            columns = list(_report_row(told[0]))
            lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
            lines += [
                f"| {' | '.join(map(_markdown_cell, _report_row(table).values()))} |" for table in told[:_SHOWN_MAX]
            ]
        if len(told) > _SHOWN_MAX:
            lines += ["", f"{len(told) - _SHOWN_MAX} more are in the JSON."]
        return "\n".join(lines)

    def _notable_tables(self) -> list[TableReport]:
        """What somebody should look at comes first."""
        order = (TableOutcome.FAILED, TableOutcome.SKIPPED, TableOutcome.DEFERRED, TableOutcome.MAINTAINED)
        return [table for fate in order for table in self.tables_with(fate)]

    def _sums(self) -> Mapping[str, int]:
        sums: dict[str, int] = {}
        for table in self.tables:
            for when, figures in (("before", table.before), ("after", table.after or table.before)):
                for each in fields(Figures) if figures else ():
                    if each.name in _SUMMED:
                        name = f"lance/{each.name}_{when}"
                        sums[name] = sums.get(name, 0) + getattr(figures, each.name)
        return sums


def _report_row(table: TableReport) -> dict[str, str | int]:
    before, after = table.before, table.after or table.before
    return {
        "table": table.uri,
        "fate": str(table.fate),
        "found": "; ".join(table.due),
        "files": _change_text(before.files, after.files) if before and after else "",
        "bytes": _change_text(before.bytes, after.bytes) if before and after else "",
        "rows not indexed": _change_text(before.index_rows_uncovered, after.index_rows_uncovered)
        if before and after and (before.index_segments or after.index_segments)
        else "",
        "versions removed": table.versions_removed,
        "bytes removed": table.bytes_removed,
        "message": table.message,
    }


def _change_text(before: int, after: int) -> str:
    """
    >>> _change(1200, 3), _change(5, 5)
    ('1,200 → 3', '5')
    """
    return f"{before:,}" if before == after else f"{before:,} → {after:,}"


def _markdown_cell(value: str | int) -> str:
    text = f"{value:,}" if isinstance(value, int) else value
    return escape_markdown(text.replace("\n", " "))
