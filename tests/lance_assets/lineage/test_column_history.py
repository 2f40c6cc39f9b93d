"""Column history: the newest recorded sources of each column, across updates, replaced tables and restored versions."""

from pathlib import Path

import pyarrow as pa

from lance_assets.lineage.column_history import ColumnOrigin, column_origins
from lance_assets.provenance.column_sources import COLUMN_SOURCES, ColumnSource, encode_column_sources
from lance_core import Table

ROWS = pa.table({"a": [1], "b": [2]})


def from_column(*columns: str, source: str) -> dict[str, str]:
    return {COLUMN_SOURCES: encode_column_sources({each: [ColumnSource("/s", source)] for each in columns}) or ""}


def origin(version: int, source: str) -> ColumnOrigin:
    return ColumnOrigin(version, (ColumnSource("/s", source),))


def test_newest_sources_of_each_column(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, properties=from_column("a", "b", source="first"), durable=False)
    table = table.append(ROWS, properties=from_column("a", "dropped", source="second")).table
    table = table.append(ROWS).table
    assert column_origins(table) == {"a": origin(2, "second"), "b": origin(1, "first")}
    assert column_origins(table.at(1)) == {"a": origin(1, "first"), "b": origin(1, "first")}
    assert column_origins(table, versions_max=2) == {"a": origin(2, "second")}
    replaced = table.overwrite(ROWS, properties=from_column("b", source="third")).table
    assert column_origins(replaced) == {"b": origin(4, "third")}
    restored = replaced.restore(1).table
    assert column_origins(restored) == {"a": origin(1, "first"), "b": origin(1, "first")}
    again = restored.append(ROWS).table.restore(3).table
    assert column_origins(again) == {"a": origin(2, "second"), "b": origin(1, "first")}
