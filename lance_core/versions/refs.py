"""The references of a table: its tags, its branches as files, and which version a reference means.

They lie at the root of the main line, whichever line asks. What their bytes are is in `format/refs.py`; making a branch
takes a commit and is `table/branches.py`'s. Nothing that a reference says is followed before its form was checked.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lance_core import validation
from lance_core.coordination.leases import Lease, check_not_being_swept
from lance_core.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import refs
from lance_core.format.ids import Version
from lance_core.format.refs import Branch, Tag
from lance_core.limits import REFERENCE_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.store import Put, Store, read_whole
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_latest


def resolve_version(
    main: Location,
    *,
    version: Version | None = None,
    tag: str | None = None,
    branch: str | None = None,
    timestamp: datetime | None = None,
) -> Snapshot:
    """The version that is meant; the newest where nothing says."""
    if sum(each is not None for each in (version, tag, timestamp)) > 1:
        raise InvalidInput("a version is named by its number, a tag or a time; give one of them")
    if tag is not None:
        if branch is not None:
            raise InvalidInput("a tag says itself which branch it is on; give one of the two")
        found = read_tag(main, tag)
        return load_at(branch_location(main, found.branch), found.version)
    here = branch_location(main, branch)
    if timestamp is not None:
        return _load_as_of(here, timestamp)
    return load_latest(here) if version is None else load_at(here, version)


def branch_location(main: Location, branch: str | None) -> Location:
    """Where a branch that exists is; the main line for None, and by its name."""
    if branch is None or branch == refs.MAIN:
        return main
    read_branch(main, branch)
    return main.branch(branch)


def read_tags(store: Store) -> dict[str, Tag]:
    """By name, in its order. `store` is the main line's. One that was deleted since it was listed is none."""
    found = {}
    for name, path in named(store, refs.TAGS):
        with suppress(NotFound):
            found[name] = _tag(store, path)
    return found


def read_branches(store: Store) -> dict[str, Branch]:
    """By name, in its order. `store` is the main line's."""
    found = {}
    for name, path in named(store, refs.BRANCHES):
        with suppress(NotFound):
            found[name] = _branch(store, name, path)
    return found


def read_tag(main: Location, name: str) -> Tag:
    path = refs.tag_path(name)
    try:
        return _tag(main.store, path)
    except NotFound:
        raise NotFound(f"{main.uri} has no tag {name!r}; {_what_there_is('tags', read_tags(main.store))}") from None


def read_branch(main: Location, name: str) -> Branch:
    path = refs.branch_path(name)
    try:
        return _branch(main.store, name, path)
    except NotFound:
        there_is = _what_there_is("branches", read_branches(main.store))
        raise NotFound(f"{main.uri} has no branch {name!r}; {there_is}") from None


@dataclass(frozen=True, slots=True)
class Tags:
    """Names for versions, of all lines of a table.

    >>> import pyarrow as pa, tempfile
    >>> from lance_core import Table
    >>> table = Table.create(tempfile.mkdtemp() + "/t", pa.table({"id": [1]}))
    >>> table.tags.create("first")
    >>> table = table.append(pa.table({"id": [2]})).table
    >>> table.at(tag="first").count_rows(), table.count_rows()
    (1, 2)
    """

    _snapshot: Snapshot
    _runtime: Runtime

    def list(self) -> dict[str, Tag]:
        return read_tags(self._main.store)

    def create(
        self,
        name: str,
        version: int | None = None,
        *,
        branch: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """For this version, or another one of this line, or of another branch (`"main"` for the main line)."""
        tag = self._tag(version, branch)
        tag = replace(tag, created=tag.updated, metadata=validation.texts(metadata, "metadata"))
        path, data = refs.tag_path(name), refs.encode_tag(tag)
        if not created(self._main.store, path, data):
            raise AlreadyExists(
                f"{self._main.uri} has a tag {name!r} already; update it, delete it, or take another name"
            )
        self._check_stands(name, tag, lambda: self._main.store.delete(path))

    def update(self, name: str, version: int | None = None, *, branch: str | None = None) -> None:
        """Let a tag that exists stand for another version."""
        before = read_tag(self._main, name)
        tag = replace(self._tag(version, branch), created=before.created, metadata=before.metadata)
        self._main.store.put(refs.tag_path(name), refs.encode_tag(tag))
        undo = refs.encode_tag(before)
        self._check_stands(name, tag, lambda: self._main.store.put(refs.tag_path(name), undo))

    def delete(self, name: str) -> None:
        """The version stays, and is no longer protected by this tag."""
        read_tag(self._main, name)
        self._main.store.delete(refs.tag_path(name))

    @property
    def _main(self) -> Location:
        return self._snapshot.location.main_line(self._snapshot.manifest.branch)

    def _check_stands(self, name: str, tag: Tag, undo: Callable[[], None]) -> None:
        """A cleanup that looked for names before this one was there gave notice of what it removes before that."""
        here = branch_location(self._main, tag.branch)
        try:
            check_not_being_swept(here.own_store, Lease(f"the tag {name!r}", tag.version))
            load_at(here, tag.version)
        except (NotFound, StorageError):
            undo()
            raise

    def _tag(self, version: int | None, branch: str | None) -> Tag:
        meant = self._snapshot
        if branch is not None:
            here = branch_location(self._main, branch)
            meant = load_latest(here) if version is None else load_at(here, validation.version_number(version))
        elif version is not None and (number := validation.version_number(version)) != meant.version:
            meant = load_at(meant.location, number)
        return Tag(
            branch=meant.manifest.branch,
            version=meant.version,
            manifest_bytes=len(meant.manifest.encode()),
            updated=refs.timestamp(self._runtime.now_ns()),
        )


def created(store: Store, path: str, data: bytes) -> bool:
    """Whether a reference was put, and not found there. A lost answer is settled by looking."""
    match store.create(path, data):
        case Put.CREATED:
            return True
        case Put.EXISTS:
            return False
        case Put.UNKNOWN:
            try:
                return store.read(path, 0, len(data) + 1) == data
            except NotFound:
                raise StorageError(f"{store.description}: whether {path} was written is not known; repeat it") from None


def named(store: Store, directory: str) -> list[tuple[str, str]]:
    """The references of one kind, each with its path."""
    paths = [info.path for info in store.list(directory)]
    return sorted((name, path) for path in paths if (name := refs.name_in(path)) is not None)


def _tag(store: Store, path: str) -> Tag:
    return refs.decode_tag(read_whole(store, path, REFERENCE_BYTES), path=path)


def _branch(store: Store, name: str, path: str) -> Branch:
    return refs.decode_branch(read_whole(store, path, REFERENCE_BYTES), name=name, path=path)


def read_clone(store: Store, path: str) -> tuple[Version, str]:
    """Which version a clone begins at, and where the clone is."""
    try:
        record = json.loads(read_whole(store, path, REFERENCE_BYTES))
        version, uri = record["version"], record["uri"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"is not the record of a clone: {error}", path=path, field="clone") from error
    if type(version) is not int or not isinstance(uri, str):
        raise Corrupt("is not the record of a clone: a field is of another type", path=path, field="clone")
    return Version(version), uri


def _load_as_of(location: Location, timestamp: datetime) -> Snapshot:
    """The newest version made at that time or before. Clocks of committers may run backwards: the numbers decide."""
    timestamp = validation.moment(timestamp, "timestamp")
    numbers = list_versions(location).numbers
    if not numbers:
        load_latest(location)
    for number in reversed(numbers):
        found = load_at(location, number)
        if found.manifest.timestamp <= timestamp:
            return found
    first = load_at(location, numbers[0]).manifest.timestamp
    raise NotFound(
        f"{location.uri} has no version of {timestamp.astimezone(UTC).isoformat()} or before: version {numbers[0]}, "
        f"the oldest there is, was made at {first.isoformat()}"
    )


def _what_there_is(kind: str, found: Mapping[str, object]) -> str:
    names = list(found)
    return f"there are {', '.join([*names[:8], *(['…'] if len(names) > 8 else [])])}" if names else f"it has no {kind}"
