"""Data frames: passes a table to data frame libraries, notebooks and other readers of Arrow streams.

Libraries that read Arrow streams take a `Table` directly: `polars.DataFrame(table)`, `pyarrow.table(table)`.
Each of them receives all rows; pass a `scan` instead to read fewer. Start with `TableFrames.scan`.
"""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from lance_core import validation
from lance_core.errors import InvalidInput, NotFound
from lance_core.format.ids import Version
from lance_core.scan import take as scan_take
from lance_core.scan.take import By
from lance_core.table.base import TableBase
from lance_core.table.lazy_scan import Columns, Scan
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
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow schema."""
        return self.scan().schema.__arrow_c_schema__()

    def scan(
        self,
        columns: Columns | None = None,
        filter: str | None = None,
        *,
        order_by: str | Sequence[str] = (),
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Sequence[int] | None = None,
        use_indices: bool = True,
    ) -> Scan:
        """Return a lazy scan: a description of rows that is read when they are requested.

        `columns` are names, or names of the result with the SQL of their values. `order_by` are names, each optionally
        followed by `asc` or `desc`; nulls come last. `fragments` restricts the scan to fragments with these ids.

            table.scan({"city": "city", "gross": "net * 1.2"}, order_by="gross desc", limit=10).to_pandas()
        """
        return Scan(
            self._snapshot,
            dict(columns) if isinstance(columns, Mapping) else columns,
            filter,
            (order_by,) if isinstance(order_by, str) else tuple(order_by),
            limit,
            offset,
            with_row_id,
            with_row_address,
            None if fragments is None else tuple(fragments),
            validation.check_flag(use_indices, "use_indices"),
        ).check()

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
        return self.scan(columns, filter, limit=limit).to_pandas(**options)

    def to_polars(
        self, columns: Sequence[str] | None = None, filter: str | None = None, *, limit: int | None = None
    ) -> "polars.DataFrame":
        """Return the rows as a polars data frame.

        table.to_polars(columns=["id"], filter="city = 'Oslo'")
        """
        return self.scan(columns, filter, limit=limit).to_polars()

    def head(self, rows: int = _HEAD_ROWS, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the first rows."""
        return self.scan(columns, limit=rows).to_table()

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
        return _format_html(self.head(_HTML_ROWS), f"{self!r}: {len(self):,} rows")


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
        verify=access.verify,
        trusted=access.trusted,
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
