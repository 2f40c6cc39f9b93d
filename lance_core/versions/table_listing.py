"""Which tables are below a place: directories are listed, level by level, and nothing of a table is opened.

A table is a directory that has a directory `_versions`. What is inside one is not looked at: its branches, its clones'
files and its data are its own. Directories whose names begin with `.` or `_` are somebody's own too, and links are not
followed. What cannot be listed is told, and the rest is found. Start with `find_tables`.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lance_core import validation
from lance_core.errors import InvalidInput, LanceError
from lance_core.format import naming
from lance_core.storage.factory import TableStore, open_store

TABLES_MAX = 100_000
_DEPTH_MAX = 32
_DIRECTORIES_MAX = 1_000_000
_AT_ONCE = 16
"""Listings under way: a store at a distance answers many as fast as one."""
_OTHERS = {"_delta_log": "a table of Delta Lake", ".hoodie": "a table of Hudi"}
_ICEBERG = frozenset(("data", "metadata"))


@dataclass(frozen=True, slots=True)
class FoundTables:
    """URIs in their order."""

    tables: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """What is no Lance table although it looks like one, or could not be listed, and why."""


@dataclass(frozen=True, slots=True)
class _Listed:
    path: str
    names: Sequence[str] = ()
    trouble: str | None = None


def find_tables(
    prefix: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    exclude: Sequence[str] = (),
    tables_max: int = TABLES_MAX,
) -> FoundTables:
    """The tables at and below `prefix`, at any depth. `exclude` are patterns of paths from there, as in `staging/*`;
    what they fit is neither listed nor told. More than `tables_max` are an error, since a part of them would look like
    all."""
    validation.whole_number(tables_max, "tables_max", at_least=1, too_small="it is how many tables there may be")
    patterns = validation.names(exclude, "exclude")
    store = open_store(prefix, storage_options=storage_options)
    tables: list[str] = []
    skipped: dict[str, str] = {}
    left, looked_at = [""], 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="finding") as threads:
        for _depth in range(_DEPTH_MAX):
            following: list[str] = []
            for listed in threads.map(lambda path: _listed(store, path), left):
                uri = _uri(store, listed.path)
                if listed.trouble is not None:
                    skipped[uri] = listed.trouble
                elif naming.VERSIONS in listed.names:
                    tables.append(uri)
                elif other := _of_another_engine(listed.names):
                    skipped[uri] = f"it is {other}, and not of Lance"
                else:
                    below = (f"{listed.path}/{name}" if listed.path else name for name in _plain(listed.names))
                    following += (path for path in below if not any(fnmatchcase(path, each) for each in patterns))
            looked_at += len(left)
            _check_bounds(store, len(tables), tables_max, looked_at + len(following))
            left = following
            if not left:
                break
    for path in left:
        skipped[_uri(store, path)] = f"it lies more than {_DEPTH_MAX} directories below {store.description}"
    return FoundTables(tuple(sorted(tables)), dict(sorted(skipped.items())))


def _listed(store: TableStore, path: str) -> _Listed:
    try:
        return _Listed(path, store.directories(path))
    except LanceError as error:
        return _Listed(path, trouble=str(error))


def _plain(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if not name.startswith((".", "_")))


def _of_another_engine(names: Sequence[str]) -> str | None:
    """By the directories that the engine makes. Iceberg's have plain names, so that both have to be there, and no
    others."""
    if set(names) == _ICEBERG:
        return "perhaps a table of Iceberg"
    return next((what for name, what in _OTHERS.items() if name in names), None)


def _uri(store: TableStore, path: str) -> str:
    return f"{store.description.rstrip('/')}/{path}" if path else store.description


def _check_bounds(store: TableStore, tables: int, tables_max: int, directories: int) -> None:
    if tables > tables_max or directories > _DIRECTORIES_MAX:
        what = f"{tables_max} tables" if tables > tables_max else f"{_DIRECTORIES_MAX} directories"
        raise InvalidInput(
            f"there are more than {what} below {store.description}; name a directory further down, exclude= what is "
            "not meant, or raise tables_max="
        )
