"""Fleet report: the outcome of all tables, as metadata for Dagster's pages and as JSON for scripts.

Pure. Messages come from the core and contain no secret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

import dagster as dg

from lance_assets.common.text import escape_markdown
from lance_assets.ledger.version_metadata import Metadata

_SHOWN_MAX = 100
"""Tables in the Markdown and in the table of the page; the JSON has more."""
_JSON_MAX = 5_000
_MESSAGE_MAX = 500
_SUMMED = ("fragments", "files", "bytes", "deleted_rows", "index_rows_uncovered", "index_segments")


class TableOutcome(StrEnum):
    """Outcome of a table in one run."""

    IN_SHAPE = "in shape"
    MAINTAINED = "maintained"
    DEFERRED = "deferred"
    """A run is writing the table."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """The directory is not a table, or cannot be opened."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Size of a table at one version. The field names are JSON keys."""

    version: int
    rows: int
    deleted_rows: int
    fragments: int
    files: int
    bytes: int
    index_rows_uncovered: int = 0
    """Sum over all indices that this library can maintain."""
    index_segments: int = 0


@dataclass(slots=True)
class TableReport:
    """Outcome of one table. The field names are JSON keys."""

    uri: str
    fate: TableOutcome = TableOutcome.IN_SHAPE
    due: tuple[str, ...] = ()
    before: Figures | None = None
    after: Figures | None = None
    compacted: bool = False
    indexed: bool = False
    """True if its indices were maintained."""
    versions_removed: int = 0
    files_removed: int = 0
    """Removed files, including orphan files."""
    bytes_removed: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)
    """Expired versions that were retained, with the reasons."""
    message: str = ""

    @property
    def has_changed(self) -> bool:
        """True if this run added or removed versions."""
        return bool(self.compacted or self.indexed or self.versions_removed)

    def add_failure(self, error: Exception) -> None:
        """Mark the table as failed. The message of a later error is appended."""
        text = str(error) or type(error).__name__
        self.fate, self.message = TableOutcome.FAILED, f"{self.message}; {text}"[:_MESSAGE_MAX].removeprefix("; ")

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value not in ((), "", {}, None, 0, False)}


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Outcome of one run over a fleet."""

    prefix: str
    tables: Sequence[TableReport]
    planning_seconds: float
    jobs: int
    """Spark jobs: one for all compactions and some for each table whose indices were maintained; more if jobs were
    lost."""

    def tables_with(self, fate: TableOutcome) -> list[TableReport]:
        return [table for table in self.tables if table.fate is fate]

    @property
    def metadata(self) -> Metadata:
        value = dg.MetadataValue
        notable = self._notable_tables()
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
        rows = [dg.TableRecord(_report_row(table)) for table in notable[:_SHOWN_MAX]]
        tables = [table.as_json() for table in [*notable, *self.tables_with(TableOutcome.IN_SHAPE)][:_JSON_MAX]]
        return {
            "lance/report": value.md(self.markdown),
            **({"lance/report_table": value.table(rows)} if rows else {}),
            "lance/report_json": value.json({"prefix": self.prefix, "tables": tables}),
            "lance/planning_seconds": value.float(round(self.planning_seconds, 3)),
            **{name: value.int(number) for name, number in numbers.items()},
        }

    @property
    def markdown(self) -> str:
        counts = ", ".join(f"{len(self.tables_with(fate))} {fate}" for fate in TableOutcome if self.tables_with(fate))
        lines = [f"**{len(self.tables)} tables below `{self.prefix}`**: {counts or 'none'}", ""]
        notable = self._notable_tables()
        if notable:
            columns = list(_report_row(notable[0]))
            lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
            lines += [
                f"| {' | '.join(map(_markdown_cell, _report_row(table).values()))} |" for table in notable[:_SHOWN_MAX]
            ]
        if len(notable) > _SHOWN_MAX:
            lines += ["", f"{len(notable) - _SHOWN_MAX} more are in the JSON."]
        return "\n".join(lines)

    def _notable_tables(self) -> list[TableReport]:
        """Return the tables that are not in shape; those that need attention come first."""
        order = (TableOutcome.FAILED, TableOutcome.SKIPPED, TableOutcome.DEFERRED, TableOutcome.MAINTAINED)
        return [table for fate in order for table in self.tables_with(fate)]

    def _sums(self) -> Mapping[str, int]:
        sums: dict[str, int] = {}
        for table in self.tables:
            for when, figures in (("before", table.before), ("after", table.after or table.before)):
                for figure in fields(Figures) if figures else ():
                    if figure.name in _SUMMED:
                        name = f"lance/{figure.name}_{when}"
                        sums[name] = sums.get(name, 0) + getattr(figures, figure.name)
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
    """Return both numbers, or one if they are equal.

    >>> _change_text(1200, 3), _change_text(5, 5)
    ('1,200 → 3', '5')
    """
    return f"{before:,}" if before == after else f"{before:,} → {after:,}"


def _markdown_cell(value: str | int) -> str:
    text = f"{value:,}" if isinstance(value, int) else value
    return escape_markdown(text.replace("\n", " "))
