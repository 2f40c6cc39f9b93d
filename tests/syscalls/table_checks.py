"""Checks of a table after a fault: what engines read from it, compared with what its writer was acknowledged.

A check returns problems, each with a kind that a report counts. `KINDS` lists them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.syscalls.engines import ENGINES, Engine, Rows
from tests.syscalls.steps import CREATED, MARKER, UPSERTED

UNREADABLE = "the newest version cannot be read"
LOST = "an acknowledged version is missing"
WRONG_ROWS = "rows are lost, doubled or wrong"
VERSION_UNREADABLE = "an acknowledged version cannot be read"
COMMIT_FAILS = "the next commit fails"
READER_ENDED = "the reader process ended or hung"
KINDS = (UNREADABLE, LOST, WRONG_ROWS, VERSION_UNREADABLE, COMMIT_FAILS, READER_ENDED)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Versions that a table must have. Keys are those of `Engine.read`."""

    writer: str
    readers: tuple[str, ...]
    acknowledged: Mapping[str, Rows] = field(default_factory=dict)
    known: Mapping[str, Rows] = field(default_factory=dict)
    """Rows of all versions of the recording, for those that are visible without an acknowledgement."""

    @property
    def newest(self) -> int:
        """The newest acknowledged version of the main branch; -1 without any."""
        return max((int(key) for key in self.acknowledged if ":" not in key), default=-1)


@dataclass(frozen=True, slots=True)
class PossibleRows:
    """Rows that the newest version of a branch may have, and versions that the table must have. `None` among the rows
    is a table that does not exist."""

    readers: tuple[str, ...]
    possible: tuple[Rows | None, ...]
    acknowledged: Mapping[str, Rows] = field(default_factory=dict)
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    text: str


def find_problems(uri: str, expected: Expectation) -> list[Problem]:
    """Read the table with every reader, commit one version more and read that."""
    problems: list[Problem] = []
    writer = ENGINES[expected.writer]()
    rows_read: Rows = ()
    is_missing = False
    for engine in (ENGINES[reader]() for reader in expected.readers):
        found, rows = _read_newest(engine, uri, expected)
        problems += found
        is_missing |= rows is None
        rows_read = rows or rows_read
        problems += _check_versions(engine, uri, expected.acknowledged)
    if any(problem.kind in (UNREADABLE, LOST) for problem in problems):
        return problems
    return problems + (
        _create_again(writer, uri, expected) if is_missing else _commit_again(writer, uri, rows_read, expected)
    )


def find_row_problems(uri: str, expected: PossibleRows) -> list[Problem]:
    """Read the newest rows of the branch and the acknowledged versions with every reader."""
    problems = []
    for engine in (ENGINES[reader]() for reader in expected.readers):
        try:
            version = engine.newest(uri, expected.branch)
            rows = engine.read(uri, f"{expected.branch}:{version}" if expected.branch else str(version))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if None not in expected.possible or type(error).__name__ not in engine.missing_errors:
                problems.append(_problem(UNREADABLE, engine, "the newest version", error))
            continue
        if not any(each is not None and list(rows) == list(each) for each in expected.possible):
            problems.append(Problem(WRONG_ROWS, f"{engine.name} reads {rows}, expected one of {expected.possible}"))
        problems += _check_filter(engine, uri, rows) if not expected.branch else []
        problems += _check_versions(engine, uri, expected.acknowledged)
    return problems


def _read_newest(engine: Engine, uri: str, expected: Expectation) -> tuple[list[Problem], Rows | None]:
    """Return problems and the rows of the newest version; `None` if there is no table, and none was acknowledged."""
    try:
        version = engine.newest(uri)
        rows = engine.read(uri, str(version))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if expected.newest < 0 and type(error).__name__ in engine.missing_errors:
            return [], None
        return [_problem(UNREADABLE, engine, "the newest version", error)], ()
    if version < expected.newest:
        text = f"{engine.name} opens version {version}, but {expected.newest} was acknowledged"
        return [Problem(LOST, text)], rows
    if list(rows) not in _possible_rows(version, expected.known):
        return [Problem(WRONG_ROWS, f"{engine.name} reads {list(rows)} at the newest version {version}")], rows
    return _check_filter(engine, uri, rows), rows


def _check_filter(engine: Engine, uri: str, rows: Rows) -> list[Problem]:
    """Compare the rows that a filter selects, by an index if there is one, with those of the scan."""
    if "create index" not in engine.steps:
        return []
    row = min(UPSERTED)
    try:
        found = engine.read(uri, f"filter:{row}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return [_problem(UNREADABLE, engine, "a filter", error)]
    if list(found) != [each for each in rows if each[0] == row]:
        return [Problem(WRONG_ROWS, f"{engine.name} finds {found} for id = {row}, but scans {rows}")]
    return []


def _possible_rows(version: int, known: Mapping[str, Rows]) -> list[list[tuple[int, int]]]:
    """Return the rows that a version may have. One that no step reported has the rows of the version before it, since a
    compaction reserves fragments in a version of its own."""
    numbers = sorted(int(key) for key in known if ":" not in key)
    if version in numbers:
        return [list(known[str(version)])]
    return [list(known[str(number)]) for number in [each for each in numbers if each < version][-1:]]


def _check_versions(engine: Engine, uri: str, acknowledged: Mapping[str, Rows]) -> list[Problem]:
    problems = []
    for key, rows in acknowledged.items():
        try:
            found = engine.read(uri, key)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            problems.append(_problem(VERSION_UNREADABLE, engine, f"version {key}", error))
        else:
            if list(found) != list(rows):
                problems.append(Problem(WRONG_ROWS, f"{engine.name} reads {found} at version {key}, not {rows}"))
    return problems


def _create_again(writer: Engine, uri: str, expected: Expectation) -> list[Problem]:
    return _try_commit(writer, uri, lambda: writer.run(uri, "create", "create"), sorted(CREATED.items()), expected)


def _commit_again(writer: Engine, uri: str, rows: Rows, expected: Expectation) -> list[Problem]:
    return _try_commit(writer, uri, lambda: writer.append(uri, dict([MARKER])), sorted([*rows, MARKER]), expected)


def _try_commit(
    writer: Engine, uri: str, commit: Callable[[], str], rows: Sequence[tuple[int, int]], expected: Expectation
) -> list[Problem]:
    try:
        commit()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return [_problem(COMMIT_FAILS, writer, "a commit", error)]
    problems = []
    for engine in (ENGINES[reader]() for reader in expected.readers):
        try:
            found = engine.read(uri, str(engine.newest(uri)))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            problems.append(_problem(UNREADABLE, engine, "the version of the next commit", error))
        else:
            if list(found) != list(rows):
                problems.append(Problem(WRONG_ROWS, f"{engine.name} reads {found} after the next commit, not {rows}"))
    return problems


def _problem(kind: str, engine: Engine, what: str, error: BaseException) -> Problem:
    return Problem(kind, f"{engine.name}, {what}: {type(error).__name__}: {str(error)[:200]}")
