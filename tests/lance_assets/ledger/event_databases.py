"""Event databases: backs up and restores the tables in which Dagster stores keys, events and claims, as the
administrator of a database does. Runs and cursors stay as they are.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.sql import SQL, Identifier

_POSTGRES_TABLES = ("event_logs", "asset_keys", "asset_event_tags", "dynamic_partitions")


class EventDatabase(Protocol):
    """Database of a Dagster instance."""

    def back_up(self, folder: Path) -> None: ...

    def restore(self, folder: Path) -> None:
        """Restore the last backup in the folder, if there is one."""


@dataclass(frozen=True, slots=True)
class SqliteDatabase:
    """File of an instance on SQLite."""

    file: Path

    def back_up(self, folder: Path) -> None:
        with closing(sqlite3.connect(self.file)) as source, closing(sqlite3.connect(folder / "database")) as copy:
            source.backup(copy)

    def restore(self, folder: Path) -> None:
        if (folder / "database").exists():
            with closing(sqlite3.connect(self.file)) as target, closing(sqlite3.connect(folder / "database")) as copy:
                copy.backup(target)


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """Database of an instance on PostgreSQL."""

    url: str

    def back_up(self, folder: Path) -> None:
        with self._cursor() as cursor:
            for table in _POSTGRES_TABLES:
                with cursor.copy(SQL("COPY {} TO STDOUT").format(Identifier(table))) as dump:
                    (folder / f"{table}.dump").write_bytes(b"".join(map(bytes, dump)))

    def restore(self, folder: Path) -> None:
        if not (folder / f"{_POSTGRES_TABLES[-1]}.dump").exists():
            return
        with self._cursor() as cursor:
            names = SQL(", ").join(map(Identifier, _POSTGRES_TABLES))
            # Only these tables: a foreign key from another one is an error, and no table is emptied unnoticed.
            cursor.execute(SQL("TRUNCATE {}").format(names))
            for table in _POSTGRES_TABLES:
                with cursor.copy(SQL("COPY {} FROM STDIN").format(Identifier(table))) as dump:
                    dump.write((folder / f"{table}.dump").read_bytes())
                # The next id follows the restored ones, as after the restore of a dump.
                cursor.execute(
                    SQL(
                        "SELECT setval(pg_get_serial_sequence(%s, 'id'), coalesce(max(id), 0) + 1, false) FROM {}"
                    ).format(Identifier(table)),
                    [table],
                )

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor]:
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            yield cursor
