"""Entries in a table of a database, through SQLAlchemy: SQLite for one machine, PostgreSQL for many. The table is
made when the first version is reserved.

    lance_manifests(base_uri, version, path, size, committer), with base_uri and version as its key

SQLAlchemy is loaded when the first database is used. Every statement is a transaction of its own.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from lance_core.errors import InvalidInput, MissingDependency, StorageError, Unsupported
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import COMMITTER, Entry
from lance_core.storage.options import redact
from lance_core.storage.store import Put

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine, Executable, Row, Table
    from sqlalchemy.exc import SQLAlchemyError

KIND = "sql"
TABLE = "lance_manifests"
_DIALECTS = ("sqlite", "postgresql")
_TIMEOUT_SECONDS = 30

_engines: dict[tuple[int, str], "Engine"] = {}
"""By process: a connection is not taken across a fork."""
_initialized: set[tuple[int, str]] = set()
"""Those that are known to have the table."""
_engines_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class SqlManifestStore:
    url: str = field(repr=False)
    """Of the database, as SQLAlchemy spells it: `sqlite:////data/manifests.db`, `postgresql://user:word@host/name`."""

    @property
    def description(self) -> str:
        url = _parse_url(self.url)
        host = f"{url.host}{f':{url.port}' if url.port else ''}/" if url.host else ""
        return f"{url.get_backend_name()} {host}{url.database}"

    @property
    def kind(self) -> str:
        return KIND

    def qualify_uri(self, uri: str) -> str:
        return uri

    def table_key(self, uri: str) -> str:
        return uri.rstrip("/")

    def newest_entry(self, key: str) -> Entry | None:
        table = _table()
        return self._first(table.select().where(table.c.base_uri == key).order_by(table.c.version.desc()).limit(1))

    def find_entry(self, key: str, version: Version) -> Entry | None:
        table = _table()
        return self._first(table.select().where(table.c.base_uri == key, table.c.version == version))

    def list_entries(self, key: str) -> Sequence[Entry]:
        table = _table()
        return self._entries(table.select().where(table.c.base_uri == key).order_by(table.c.version))

    def reserve(self, key: str, entry: Entry) -> Put:
        from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

        self._ensure_table()
        values = {"base_uri": key, "version": entry.version, "committer": COMMITTER}
        try:
            with self._connection_pool().connect() as connection:
                connection.execute(_table().insert().values(**values, path=entry.path, size=entry.size))
        except IntegrityError:
            return Put.EXISTS
        except DBAPIError as error:
            if error.connection_invalidated or _is_connection_error(error):
                return Put.UNKNOWN
            raise self._storage_error(f"reserve version {entry.version}", error) from error
        except SQLAlchemyError as error:
            raise self._storage_error(f"reserve version {entry.version}", error) from error
        return Put.CREATED

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        table = _table()
        moved = table.update().values(path=to.path, size=to.size, committer=COMMITTER)
        at = (table.c.base_uri == key, table.c.version == entry.version, table.c.path == entry.path)
        return self._execute_change(f"move version {entry.version}", moved.where(*at)) == 1

    def remove_entry(self, key: str, entry: Entry) -> None:
        table = _table()
        at = (table.c.base_uri == key, table.c.version == entry.version, table.c.path == entry.path)
        self._execute_change(f"forget version {entry.version}", table.delete().where(*at))

    def _first(self, query: "Executable") -> Entry | None:
        return next(iter(self._entries(query)), None)

    def _entries(self, query: "Executable") -> Sequence[Entry]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._connection_pool().connect() as connection:
                return [_entry(row) for row in connection.execute(query)]
        except SQLAlchemyError as error:
            with suppress(SQLAlchemyError):
                if not self._has_table():
                    return ()  # nobody has reserved anything yet
            raise self._storage_error("look for a version", error) from error

    def _execute_change(self, what: str, statement: "Executable") -> int:
        from sqlalchemy import CursorResult
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._connection_pool().connect() as connection:
                result = connection.execute(statement)
                assert isinstance(result, CursorResult)
                return result.rowcount
        except SQLAlchemyError as error:
            raise self._storage_error(what, error) from error

    def _has_table(self) -> bool:
        from sqlalchemy import inspect

        return inspect(self._connection_pool()).has_table(TABLE)

    def _ensure_table(self) -> None:
        """Two may find that it is missing; then one of them meets the table of the other."""
        from sqlalchemy.exc import SQLAlchemyError

        known = (os.getpid(), self.url)
        if known in _initialized:
            return
        try:
            if not self._has_table():
                with suppress(SQLAlchemyError):
                    _table().create(self._connection_pool(), checkfirst=True)
                if not self._has_table():
                    _table().create(self._connection_pool())
        except SQLAlchemyError as error:
            raise self._storage_error(f"make the table {TABLE}", error) from error
        _initialized.add(known)

    def _connection_pool(self) -> "Engine":
        known = (os.getpid(), self.url)
        with _engines_lock:
            if known not in _engines:
                _engines[known] = _create_engine(_parse_url(self.url))
            return _engines[known]

    def _storage_error(self, what: str, error: "SQLAlchemyError") -> StorageError:
        """With what the database said, less the password, should it have repeated that."""
        said = str(getattr(error, "orig", None) or type(error).__name__).strip().partition("\n")[0]
        return StorageError(f"{self.description}: could not {what}: {redact(said, _secrets(_parsed(self.url)))}")


def _secrets(url: "URL") -> Iterator[str]:
    """What drivers take in the query too, as `password` and otherwise."""
    if url.password:
        yield str(url.password)
    for name, values in url.normalized_query.items():
        if any(word in name.lower() for word in ("pass", "secret", "token")):
            yield from values


def _parse_url(text: str) -> "URL":
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "versions reserved in a database need SQLAlchemy: pip install 'lance-assets[sql]'"
        ) from error
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidInput(
            "the URL of the database that reserves versions is none that SQLAlchemy knows; write it as in "
            "sqlite:////data/manifests.db or postgresql://user:password@host/database"
        ) from None
    if url.get_backend_name() not in _DIALECTS:
        raise Unsupported(
            f"versions are reserved in SQLite or PostgreSQL, and not in {url.get_backend_name()!r}; a database that "
            "nobody has tried this with could let two writers have one version"
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidInput(
            "an SQLite database in memory is known to one process alone, and reserves nothing from others; name a "
            "file, as in sqlite:////data/manifests.db"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _create_engine(url: "URL") -> "Engine":
    from sqlalchemy import create_engine

    wait: dict[str, object] = {}
    if url.get_backend_name() == "sqlite":
        wait = {"timeout": _TIMEOUT_SECONDS}
    elif url.get_driver_name().startswith("psycopg") and "options" not in url.query:
        wait = {"connect_timeout": _TIMEOUT_SECONDS, "options": f"-c statement_timeout={_SECONDS_TO_WAIT}s"}
    try:
        return create_engine(
            url, isolation_level="AUTOCOMMIT", connect_args=wait, pool_pre_ping=True, hide_parameters=True
        )
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"versions reserved in PostgreSQL need its driver ({error.name}): pip install 'lance-assets[postgresql]'"
        ) from error


@cache
def _table() -> "Table":
    from sqlalchemy import BigInteger, Column, MetaData, Table, Text

    return Table(
        TABLE,
        MetaData(),
        Column("base_uri", Text, primary_key=True),
        Column("version", BigInteger, primary_key=True, autoincrement=False),
        Column("path", Text, nullable=False),
        Column("size", BigInteger),
        Column("committer", Text, nullable=False),
    )


def _entry(row: "Row[tuple[object, ...]]") -> Entry:
    return Entry(Version(row.version), row.path, row.size)


def _is_connection_error(error: "SQLAlchemyError") -> bool:
    """A connection that breaks while a statement runs: what became of it, only looking tells."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    return isinstance(error, OperationalError | InterfaceError)


def _reset_lock_after_fork() -> None:
    """A lock that another thread held at the fork would never be let go."""
    global _engines_lock
    _engines_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)
