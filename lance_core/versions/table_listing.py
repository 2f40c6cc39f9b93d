"""Table discovery: finds the tables below a prefix by listing directories level by level, without opening a file.

A table is a directory that contains a directory `_versions`. The search does not descend into a table: its branches,
the files of its clones and its data belong to it. It also skips directories whose names begin with `.` or `_`, and
does not follow links. Directories that cannot be listed are reported, and the search continues. Start with
`find_tables`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lance_core import validation
from lance_core.errors import InvalidInput, LanceError
from lance_core.format import naming
from lance_core.storage.concurrency import map_requests
from lance_core.storage.factory import TableStore, open_store

TABLES_MAX = 100_000
_DEPTH_MAX = 32
_DIRECTORIES_MAX = 1_000_000
_OTHER_FORMATS = {"_delta_log": "a Delta Lake table", ".hoodie": "a Hudi table"}
_ICEBERG = frozenset(("data", "metadata"))


@dataclass(frozen=True, slots=True)
class FoundTables:
    """Sorted URIs of the tables below a prefix."""

    tables: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """URIs that look like a table but are not a Lance table, or that could not be listed, each with the reason."""


@dataclass(frozen=True, slots=True)
class _Listing:
    path: str
    names: Sequence[str] = ()
    error: str | None = None


def find_tables(
    prefix: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    exclude: Sequence[str] = (),
    tables_max: int = TABLES_MAX,
) -> FoundTables:
    """Return the tables at and below `prefix`, at any depth.

    `exclude` are patterns of paths relative to the prefix, such as `staging/*`; matching directories are neither
    listed nor reported. More than `tables_max` tables raise an error, since an incomplete result would look complete.
    """
    validation.check_integer(tables_max, "tables_max", at_least=1, too_small="it is the maximum number of tables")
    patterns = validation.check_names(exclude, "exclude")
    store = open_store(prefix, storage_options=storage_options)
    tables: list[str] = []
    skipped: dict[str, str] = {}
    pending, listed_count = [""], 0
    for _depth in range(_DEPTH_MAX):
        next_level: list[str] = []
        for listing in map_requests(store, lambda path: _list_directory(store, path), pending):
            uri = _uri_of(store, listing.path)
            if listing.error is not None:
                skipped[uri] = listing.error
            elif naming.VERSIONS in listing.names:
                tables.append(uri)
            elif other_format := _other_format(listing.names):
                skipped[uri] = f"it is {other_format}, not a Lance table"
            else:
                below = (f"{listing.path}/{name}" if listing.path else name for name in _visible(listing.names))
                next_level += (path for path in below if not any(fnmatchcase(path, each) for each in patterns))
        listed_count += len(pending)
        _check_bounds(store, len(tables), tables_max, listed_count + len(next_level))
        pending = next_level
        if not pending:
            break
    for path in pending:
        skipped[_uri_of(store, path)] = f"it is more than {_DEPTH_MAX} directories below {store.description}"
    return FoundTables(tuple(sorted(tables)), dict(sorted(skipped.items())))


def _list_directory(store: TableStore, path: str) -> _Listing:
    try:
        return _Listing(path, store.list_directories(path))
    except LanceError as error:
        return _Listing(path, error=str(error))


def _visible(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if not name.startswith((".", "_")))


def _other_format(names: Sequence[str]) -> str | None:
    """Return the table format that these directories belong to. The directories of Iceberg have common names, so both
    must exist, and no others."""
    if set(names) == _ICEBERG:
        return "perhaps an Iceberg table"
    return next((what for name, what in _OTHER_FORMATS.items() if name in names), None)


def _uri_of(store: TableStore, path: str) -> str:
    return f"{store.description.rstrip('/')}/{path}" if path else store.description


def _check_bounds(store: TableStore, tables: int, tables_max: int, directories: int) -> None:
    if tables > tables_max or directories > _DIRECTORIES_MAX:
        limit = f"{tables_max} tables" if tables > tables_max else f"{_DIRECTORIES_MAX} directories"
        raise InvalidInput(
            f"there are more than {limit} below {store.description}; pass a deeper prefix, skip directories with "
            "exclude=, or raise tables_max="
        )
