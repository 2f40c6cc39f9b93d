"""Frames: gives a table to data frame libraries, notebooks and everything that reads Arrow streams.

Libraries that read Arrow streams take a `Table` directly: `polars.DataFrame(table)`, `pyarrow.table(table)`.
Each of them receives all rows; use `to_table`, `to_pandas` or `to_polars` with `columns=` and `filter=` to read fewer.
"""

import random
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from lance_core import validation
from lance_core.errors import InvalidInput, NotFound
from lance_core.format.ids import Version
from lance_core.index import lookup
from lance_core.scan import take as scan_take
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.scan.take import By
from lance_core.storage.optional_packages import import_package
from lance_core.table.base import TableBase
from lance_core.versions.location import AccessOptions, locate
from lance_core.versions.snapshot import load_at

if TYPE_CHECKING:
    import pandas
    import polars

_HEAD_ROWS = 5
_HTML_ROWS = 10
_CELL_CHARS_MAX = 60


class TableFrames(TableBase):
    """Part of `Table` that other libraries and notebooks read."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow stream, which reads each batch when it is requested."""
        plan = plan_scan(self._snapshot.manifest, columns=None)
        reader = pa.RecordBatchReader.from_batches(plan.schema, scan(self._location, plan))
        return reader.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow schema."""
        return plan_scan(self._snapshot.manifest, columns=None).schema.__arrow_c_schema__()

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        **options: Any,
    ) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame. `options` are those of `pyarrow.Table.to_pandas`.

        table.to_pandas(columns=["id"], filter="city = 'Oslo'")
        """
        import_package("pandas", extra=None, needed_for="to_pandas()")
        frame: pandas.DataFrame = self._read(columns, filter, limit).to_pandas(**options)
        return frame

    def to_polars(
        self, columns: Sequence[str] | None = None, filter: str | None = None, *, limit: int | None = None
    ) -> "polars.DataFrame":
        """Return the rows as a polars data frame.

        table.to_polars(columns=["id"], filter="city = 'Oslo'")
        """
        package = import_package("polars", extra=None, needed_for="to_polars()")
        frame: polars.DataFrame = package.from_arrow(self._read(columns, filter, limit))
        return frame

    def head(self, rows: int = _HEAD_ROWS, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the first rows."""
        return self._read(columns, None, rows)

    def sample(self, rows: int, columns: Sequence[str] | None = None, *, seed: int | None = None) -> pa.Table:
        """Return random rows, each at most once, in table order; all rows if there are fewer. The same `seed` selects
        the same rows of a version."""
        count = validation.check_integer(rows, "rows", at_least=0, too_small="it counts rows")
        live = self._snapshot.manifest.row_count()
        offsets = sorted(random.Random(seed).sample(range(live), min(count, live)))
        return scan_take.take(self._location, self._snapshot.manifest, offsets, columns, by=By.OFFSET)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._snapshot.manifest.row_count()

    def __bool__(self) -> bool:
        """Return `True`, also for a table without rows."""
        return True

    def __iter__(self) -> NoReturn:
        raise InvalidInput("a table cannot be iterated; use to_batches(), or to_table().to_pylist() for its rows")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the version. The copy reads the manifest again."""
        manifest, access = self._snapshot.manifest, self._location.access
        return _reopen, (type(self), self._location.uri, access, int(manifest.version), manifest.timestamp)

    def _repr_html_(self) -> str:
        """Return the first rows and the columns as HTML, for notebooks."""
        return _format_html(self._read(None, None, _HTML_ROWS), f"{self!r}: {len(self):,} rows")

    def _read(self, columns: Sequence[str] | None, filter: str | None, limit: int | None) -> pa.Table:
        plan = plan_scan(
            self._snapshot.manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            select=lookup.selector_of(self._snapshot),
        )
        return pa.Table.from_batches(scan(self._location, plan), plan.schema)


def _reopen(
    table_class: type[TableFrames], uri: str, access: AccessOptions, version: int, timestamp: datetime
) -> TableFrames:
    """Open the version that a pickle names."""
    location = locate(
        uri,
        storage_options=access.storage_options,
        durable=access.durable,
        bases=access.bases,
        manifest_store=access.manifest_store,
    )
    snapshot = load_at(location, Version(version))
    if snapshot.manifest.timestamp != timestamp:
        raise NotFound(
            f"{location.uri}: version {version} is not the one that was pickled: the table was created again; open it "
            "by its URI"
        )
    return table_class(snapshot)


def _format_html(rows: pa.Table, title: str) -> str:
    """Return rows as an HTML table with the types of the columns."""
    head = "".join(
        f"<th>{escape(field.name)}<br><small>{escape(str(field.type))}</small></th>" for field in rows.schema
    )
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_format_cell(value))}</td>' for value in row.values())}</tr>"
        for row in rows.to_pylist()
    )
    return f"<p><code>{escape(title)}</code></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _format_cell(value: object) -> str:
    text = str(value)
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[:_CELL_CHARS_MAX]}…"
