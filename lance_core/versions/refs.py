"""Table references: tags, the files that declare branches, and the version that a reference names.

References are stored at the root of the main branch and serve all branches. `format/refs.py` defines their bytes;
creating a branch takes a commit and lives in `table/branches.py`. The content of a reference is validated before it is
used. Start with `resolve_version`.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from lance_core import validation
from lance_core.coordination.leases import Lease, check_not_being_swept
from lance_core.errors import AlreadyExists, Corrupt, InvalidInput, LanceError, NotFound, StorageError
from lance_core.format import refs
from lance_core.format.ids import Version
from lance_core.format.refs import Branch, Tag
from lance_core.limits import REFERENCE_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import Put, Store, read_decoded, read_whole
from lance_core.versions.as_of import load_as_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_latest

_Reference = TypeVar("_Reference")


def resolve_version(
    main: Location,
    *,
    version: Version | None = None,
    tag: str | None = None,
    branch: str | None = None,
    timestamp: datetime | None = None,
) -> Snapshot:
    """Load the version that the arguments name; without any, the newest version of the main branch."""
    if sum(each is not None for each in (version, tag, timestamp)) > 1:
        raise InvalidInput("version=, tag= and timestamp= each name a version; pass only one of them")
    if tag is not None:
        if branch is not None:
            raise InvalidInput("a tag already names its branch; pass either tag= or branch=")
        target = read_tag(main, tag)
        return load_at(branch_location(main, target.branch), target.version)
    location = branch_location(main, branch)
    if timestamp is not None:
        return load_as_of(location, timestamp)
    return load_latest(location) if version is None else load_at(location, version)


def branch_location(main: Location, branch: str | None) -> Location:
    """Return the location of an existing branch; of the main branch for `None` and for its name."""
    if branch is None or branch == refs.MAIN:
        return main
    read_branch(main, branch)
    return main.locate_branch(branch)


def read_tags(store: Store) -> dict[str, Tag]:
    """Return all tags by name, in name order. `store` is the one of the main branch. A tag that is deleted after the
    listing is left out."""
    return _read_references(store, refs.TAGS, lambda _name, path: _read_tag_file(store, path))


def read_branches(store: Store) -> dict[str, Branch]:
    """Return all named branches by name, in name order. `store` is the one of the main branch."""
    return _read_references(store, refs.BRANCHES, lambda name, path: _read_branch_file(store, name, path))


def _read_references(store: Store, directory: str, read: Callable[[str, str], _Reference]) -> dict[str, _Reference]:
    """Read the references in a directory by name. One that is deleted after the listing is left out."""

    def read_one(reference: tuple[str, str]) -> _Reference | None:
        with suppress(NotFound):
            return read(*reference)
        return None

    references = list_references(store, directory)
    values = map_requests(store, read_one, references)
    return {name: value for (name, _path), value in zip(references, values, strict=True) if value is not None}


def read_tag(main: Location, name: str) -> Tag:
    path = refs.tag_path(name)
    try:
        return _read_tag_file(main.store, path)
    except NotFound:
        raise NotFound(f"{main.uri} has no tag {name!r}; {_available_names('tags', read_tags(main.store))}") from None


def read_branch(main: Location, name: str) -> Branch:
    path = refs.branch_path(name)
    try:
        return _read_branch_file(main.store, name, path)
    except NotFound:
        available = _available_names("branches", read_branches(main.store))
        raise NotFound(f"{main.uri} has no branch {name!r}; {available}") from None


@dataclass(frozen=True, slots=True)
class Tags:
    """Tags of a table: names for versions of any branch.

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

    def __repr__(self) -> str:
        """Return the names, each with the version that it names."""
        try:
            names = ", ".join(f"{name}={tag.version}" for name, tag in self.list().items())
        except LanceError as error:  # a representation must not raise
            names = f"unreadable: {error}"
        return f"Tags({names})"

    def list(self) -> dict[str, Tag]:
        """Return all tags by name."""
        return read_tags(self._main_branch.store)

    def create(
        self,
        name: str,
        version: int | None = None,
        *,
        branch: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Create a tag for the version of this table, for another version of its branch, or for a version of another
        branch (`"main"` is the main branch). Raises `AlreadyExists` if the tag exists."""
        tag = self._tag_of(version, branch)
        tag = replace(tag, created=tag.updated, metadata=validation.check_text_mapping(metadata, "metadata"))
        path, data = refs.tag_path(name), refs.encode_tag(tag)
        if not create_reference(self._main_branch.store, path, data):
            raise AlreadyExists(
                f"{self._main_branch.uri} already has a tag {name!r}; update it, delete it, or choose another name"
            )
        self._check_version_exists(name, tag, lambda: self._main_branch.store.delete(path))

    def update(self, name: str, version: int | None = None, *, branch: str | None = None) -> None:
        """Move an existing tag to another version."""
        before = read_tag(self._main_branch, name)
        tag = replace(self._tag_of(version, branch), created=before.created, metadata=before.metadata)
        self._main_branch.store.put(refs.tag_path(name), refs.encode_tag(tag))
        undo = refs.encode_tag(before)
        self._check_version_exists(name, tag, lambda: self._main_branch.store.put(refs.tag_path(name), undo))

    def delete(self, name: str) -> None:
        """Delete a tag. The version stays, but this tag no longer protects it from cleanup."""
        read_tag(self._main_branch, name)
        self._main_branch.store.delete(refs.tag_path(name))

    @property
    def _main_branch(self) -> Location:
        return self._snapshot.location.locate_main_branch(self._snapshot.manifest.branch)

    def _check_version_exists(self, name: str, tag: Tag, undo: Callable[[], None]) -> None:
        """Undo the new tag and raise an error if a cleanup is removing its version.

        A cleanup that read the tags before this one existed announced its sweep before that, so the notice is visible
        here.
        """
        location = branch_location(self._main_branch, tag.branch)
        try:
            check_not_being_swept(location.own_store, Lease(f"the tag {name!r}", tag.version))
            load_at(location, tag.version)
        except (NotFound, StorageError):
            undo()
            raise

    def _tag_of(self, version: int | None, branch: str | None) -> Tag:
        target = self._snapshot
        if branch is not None:
            location = branch_location(self._main_branch, branch)
            target = (
                load_latest(location)
                if version is None
                else load_at(location, validation.check_version_number(version))
            )
        elif version is not None and (number := validation.check_version_number(version)) != target.version:
            target = load_at(target.location, number)
        return Tag(
            branch=target.manifest.branch,
            version=target.version,
            manifest_bytes=len(target.manifest.encode()),
            updated=refs.timestamp(self._runtime.now_ns()),
        )


def create_reference(store: Store, path: str, data: bytes) -> bool:
    """Create a reference; return `False` if it already existed. If the answer of the store was lost, read the reference
    to decide, and make it durable if it has these bytes. Raise `StorageError` if either fails."""
    match store.create(path, data):
        case Put.CREATED:
            return True
        case Put.EXISTS:
            return False
        case Put.UNKNOWN:
            try:
                if store.read(path, 0, len(data) + 1) != data:
                    return False
            except NotFound:
                raise StorageError(
                    f"{store.description}: it is unknown whether {path} was written; repeat the call"
                ) from None
            store.ensure_durable([path])
            return True


def list_references(store: Store, directory: str) -> list[tuple[str, str]]:
    """Return the names of the references in a directory, each with its path."""
    paths = [info.path for info in store.list(directory)]
    return sorted((name, path) for path in paths if (name := refs.parse_reference_name(path)) is not None)


def _read_tag_file(store: Store, path: str) -> Tag:
    return read_decoded(store, path, REFERENCE_BYTES, lambda data: refs.decode_tag(data, path=path))


def _read_branch_file(store: Store, name: str, path: str) -> Branch:
    return read_decoded(store, path, REFERENCE_BYTES, lambda data: refs.decode_branch(data, name=name, path=path))


def read_clone(store: Store, path: str) -> tuple[Version, str]:
    """Return the version at which a clone begins, and the URI of the clone."""
    try:
        record = json.loads(read_whole(store, path, REFERENCE_BYTES))
        version, uri = record["version"], record["uri"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"is not a clone record: {error}", path=path, field="clone") from error
    if type(version) is not int or not isinstance(uri, str):
        raise Corrupt("is not a clone record: a field has the wrong type", path=path, field="clone")
    return Version(version), uri


def _available_names(kind: str, references: Mapping[str, object]) -> str:
    names = list(references)
    return f"it has {', '.join([*names[:8], *(['…'] if len(names) > 8 else [])])}" if names else f"it has no {kind}"
