"""SQL manifest store: entries in a database table, through SQLAlchemy. SQLite serves one machine, PostgreSQL many.

    lance_manifests(base_uri, version, path, size, committer), primary key (base_uri, version)

The table is created when the first version is reserved. SQLAlchemy is imported when the first database is used. Each
statement is a transaction of its own (autocommit).
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
"""Engines by process and URL, because a connection must not be used across a fork."""
_initialized: set[tuple[int, str]] = set()
"""Processes and URLs of the databases in which the table is known to exist."""
_engines_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class SqlManifestStore:
    """Database at `url` as a manifest store."""

    url: str = field(repr=False)
    """SQLAlchemy URL: `sqlite:////data/manifests.db`, `postgresql://user:password@host/name`."""

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
        return self._execute_change(f"move the entry of version {entry.version}", moved.where(*at)) == 1

    def remove_entry(self, key: str, entry: Entry) -> None:
        table = _table()
        at = (table.c.base_uri == key, table.c.version == entry.version, table.c.path == entry.path)
        self._execute_change(f"delete the entry of version {entry.version}", table.delete().where(*at))

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
                    return ()  # no version has been reserved yet
            raise self._storage_error("read the versions", error) from error

    def _execute_change(self, action: str, statement: "Executable") -> int:
        """Execute a statement and return the number of changed rows. `action` describes it in messages."""
        from sqlalchemy import CursorResult
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._connection_pool().connect() as connection:
                result = connection.execute(statement)
                assert isinstance(result, CursorResult)
                return result.rowcount
        except SQLAlchemyError as error:
            raise self._storage_error(action, error) from error

    def _has_table(self) -> bool:
        from sqlalchemy import inspect

        return inspect(self._connection_pool()).has_table(TABLE)

    def _ensure_table(self) -> None:
        """Create the table unless it exists. If two processes create it concurrently, one fails and then finds it."""
        from sqlalchemy.exc import SQLAlchemyError

        cache_key = (os.getpid(), self.url)
        if cache_key in _initialized:
            return
        try:
            if not self._has_table():
                with suppress(SQLAlchemyError):
                    _table().create(self._connection_pool(), checkfirst=True)
                if not self._has_table():
                    _table().create(self._connection_pool())
        except SQLAlchemyError as error:
            raise self._storage_error(f"create the table {TABLE}", error) from error
        _initialized.add(cache_key)

    def _connection_pool(self) -> "Engine":
        cache_key = (os.getpid(), self.url)
        with _engines_lock:
            if cache_key not in _engines:
                _engines[cache_key] = _create_engine(_parse_url(self.url))
            return _engines[cache_key]

    def _storage_error(self, action: str, error: "SQLAlchemyError") -> StorageError:
        """Return the error to raise, with the first line of the database's message, secrets redacted."""
        reason = str(getattr(error, "orig", None) or type(error).__name__).strip().partition("\n")[0]
        return StorageError(
            f"{self.description}: could not {action}: {redact(reason, _secrets(_parse_url(self.url)))}; check the "
            "database and its URL, then try again"
        )


def _secrets(url: "URL") -> Iterator[str]:
    """Yield the secrets in a URL: its password, and secret query parameters, which drivers accept as well."""
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
            "a manifest store in a database needs SQLAlchemy; install it with: pip install 'lance-assets[sql]'"
        ) from error
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidInput(
            "SQLAlchemy cannot parse the URL of the manifest store; write it as sqlite:////data/manifests.db or "
            "postgresql://user:password@host/database"
        ) from None
    if url.get_backend_name() not in _DIALECTS:
        raise Unsupported(
            f"a manifest store must be in SQLite or PostgreSQL, not in {url.get_backend_name()!r}; an untested "
            "database could let two writers commit the same version"
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidInput(
            "an SQLite database in memory is visible to one process only, so it cannot reserve versions; name a file, "
            "as in sqlite:////data/manifests.db"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _create_engine(url: "URL") -> "Engine":
    from sqlalchemy import create_engine

    timeouts: dict[str, object] = {}
    if url.get_backend_name() == "sqlite":
        timeouts = {"timeout": _TIMEOUT_SECONDS}
    elif url.get_driver_name().startswith("psycopg") and "options" not in url.query:
        timeouts = {"connect_timeout": _TIMEOUT_SECONDS, "options": f"-c statement_timeout={_TIMEOUT_SECONDS}s"}
    try:
        return create_engine(
            url, isolation_level="AUTOCOMMIT", connect_args=timeouts, pool_pre_ping=True, hide_parameters=True
        )
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"a manifest store in PostgreSQL needs its driver ({error.name}); install it with: pip install "
            "'lance-assets[postgresql]'"
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
    """Return whether the connection broke during a statement, so that its outcome is unknown."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    return isinstance(error, OperationalError | InterfaceError)


def _reset_lock_after_fork() -> None:
    """Replace the lock: if another thread held it during the fork, it would stay locked in the child."""
    global _engines_lock
    _engines_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)
