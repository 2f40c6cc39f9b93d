"""Branches and clones: tables that start as a version of another table.

    branch          below the root of the main branch, with the identity of the table; visible by a file in `_refs/`
    shallow clone   a table of its own at any location, which reads the files of its source
    deep clone      a table of its own with copies of the files

Each is one commit of a manifest with the version number of its source. A deep clone copies the files first; if it is
interrupted, it leaves a directory without a version, which is no table.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS, commit
from lance_core.commit.write_protocol import check_not_detached
from lance_core.coordination.leases import Lease, acquire, check_not_being_swept, release
from lance_core.errors import AlreadyExists, InvalidInput, LanceError, NotFound, StorageError
from lance_core.format import ingest_records, naming, refs
from lance_core.format.base_path import BasePath, smallest_free_id
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.ids import Version
from lance_core.format.operations import Clone
from lance_core.format.overlay import overlays_of
from lance_core.format.refs import Branch
from lance_core.format.transaction import Transaction
from lance_core.progress import track
from lance_core.runtime import Runtime
from lance_core.storage.factory import is_at_or_below
from lance_core.storage.tree_operations import copy_file, remove_empty_directories, remove_tree
from lance_core.transactions.apply import Fork
from lance_core.versions.location import Location, check_manifest_store, manifest_store_config
from lance_core.versions.refs import create_reference, read_branch, read_branches, read_tags, resolve_version
from lance_core.versions.snapshot import (
    Snapshot,
    list_versions,
    load_at,
    load_latest,
    load_transaction,
    table_exists,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branches(Generic[T]):
    """Branches of a table. A branch is a sequence of versions that starts at a version of another branch.

    >>> import pyarrow as pa, tempfile
    >>> from lance_core import Table
    >>> table = Table.create(tempfile.mkdtemp() + "/t", pa.table({"id": [1]}))
    >>> trial = table.branches.create("trial")
    >>> trial.append(pa.table({"id": [2]})).table.count_rows(), table.refresh().count_rows()
    (2, 1)
    """

    _snapshot: Snapshot
    _runtime: Runtime
    _opened: Callable[[Snapshot], T]

    def __repr__(self) -> str:
        """Return the names, each with the version at which the branch starts."""
        try:
            names = ", ".join(f"{name}={branch.parent_version}" for name, branch in self.list().items())
        except LanceError as error:  # a representation must not raise
            names = f"unreadable: {error}"
        return f"Branches({names})"

    def list(self) -> dict[str, Branch]:
        """Return all branches by name, without the main branch."""
        return read_branches(self._main.store)

    def create(self, name: str, version: int | None = None, *, tag: str | None = None) -> T:
        """Create a branch at this version, at another `version` of this branch or at the version of `tag`, and return
        the table at its first version."""
        refs.check_new_branch_name(name)
        if version is not None and tag is not None:
            raise InvalidInput("a branch starts at a version or at a tag; pass only one of them")
        source = self._snapshot
        if tag is not None:
            source = resolve_version(self._main, tag=tag)
        elif version is not None and (number := validation.check_version_number(version)) != source.version:
            source = load_at(source.location, number)
        return self._opened(_branch(self._main, source, name, runtime=self._runtime))

    def delete(self, name: str) -> None:
        """Delete a branch with its versions and files. It is refused while another branch starts at it or a tag
        references a version of it. Deleting again completes an interrupted deletion."""
        main = self._main
        directory = refs.branch_directory(name)
        parts = [f"{directory}/{part}" for part in (naming.VERSIONS, *naming.DIRECTORIES)]
        others = read_branches(main.store)
        try:
            branch = read_branch(main, name)
        except NotFound:
            if not any(main.own_store.walk(part) for part in parts):
                raise
            below = [other for other, info in others.items() if info.parent_branch == name]
        else:
            below = [other for other, info in others.items() if info.is_below(branch)]
        tags = [tag for tag, info in read_tags(main.store).items() if info.branch == name]
        if below or tags:
            users = [f"the branch {each!r}" for each in below] + [f"the tag {each!r}" for each in tags]
            raise InvalidInput(
                f"{main.uri}: the branch {name!r} is in use by {', '.join(users)}; delete what uses it first"
            )
        main.store.delete(refs.branch_path(name))
        # The versions are deleted first, so that an interrupted deletion leaves no table.
        for part in parts:
            remove_tree(main.own_store, part)
        remove_empty_directories(main.own_store, "/".join(directory.split("/")[:2]))

    @property
    def _main(self) -> Location:
        return self._snapshot.location.locate_main_branch(self._snapshot.manifest.branch)


def clone(source: Snapshot, uri: str | os.PathLike[str], *, shallow: bool, runtime: Runtime) -> Snapshot:
    """Create the table that starts as this version and return its snapshot."""
    shallow = validation.check_flag(shallow, "shallow")
    places = source.location.own_uris(source.manifest.branch)
    target = source.location.locate_other(validation.check_uri(uri), bases=places if shallow else ())
    if table_exists(target):
        raise AlreadyExists(f"a table already exists at {target.uri}; clone to a location without one")
    if any(is_at_or_below(target.uri, place) for place in places):
        raise InvalidInput(
            f"{target.uri} is inside {source.location.uri}, whose cleanup may remove files that it does not know; "
            "clone to a location outside it"
        )
    check_not_detached(source)
    check_manifest_store(source.location, source.manifest)
    uuid = str(runtime.new_uuid())
    if shallow:
        _record_clone_in_source(source, target.uri, uuid)
        check_not_being_swept(source.location.own_store, Lease("cloning it", source.version))
        load_at(source.location, source.version)
    else:
        _copy_files(source, target)
    _copy_ingest_records(source, target)
    manifest = source.manifest
    config = {TABLE_ID: uuid} if TABLE_ID in manifest.config else {}
    config |= manifest_store_config(target)
    fork = Fork(manifest, _base_of(source) if shallow else None, config=config)
    operation = Clone(shallow, manifest.branch if shallow else None, manifest.version, source.location.uri, None)
    return _commit(target, Transaction(manifest.version, uuid, operation, {}), fork, runtime)


def _branch(main: Location, source: Snapshot, name: str, *, runtime: Runtime) -> Snapshot:
    path = refs.branch_path(name)
    if main.store.head(path) is not None:
        raise AlreadyExists(f"{main.uri} already has a branch {name!r}; delete it or choose another name")
    check_not_detached(source)
    check_manifest_store(source.location, source.manifest)
    manifest = source.manifest
    parent = manifest.branch
    operation = Clone(True, parent, manifest.version, source.location.uri, name)
    ours = Transaction(manifest.version, str(runtime.new_uuid()), operation, {})
    target = main.locate_branch(name)
    lease = acquire(source.location.own_store, Lease("creating a branch at it", manifest.version), runtime)
    load_at(source.location, manifest.version)
    try:
        first_version = _commit(target, ours, Fork(manifest, _base_of(source), name), runtime)
    except AlreadyExists:
        first_version = _first_version_of_interrupted(target, operation)
    info = Branch(
        parent_branch=parent,
        parent_version=manifest.version,
        manifest_bytes=len(manifest.encode()),
        created_seconds=runtime.now_ns() // 1_000_000_000,
        lineage=(
            *(read_branch(main, parent).lineage if parent else ()),
            (manifest.version, runtime.new_uuid().hex),
        ),
    )
    if not create_reference(main.store, path, refs.encode_branch(info)):
        raise AlreadyExists(
            f"{main.uri} has a branch {name!r} that another writer has just created; use it or choose another name"
        )
    release(source.location.own_store, lease)
    return first_version


def _first_version_of_interrupted(target: Location, operation: Clone) -> Snapshot:
    """Return the first version that an interrupted creation of the same branch committed. No reader can have seen it,
    so it is used."""
    found = load_latest(target)
    made_by = load_transaction(target, found.manifest)
    if made_by is None or made_by.operation != operation or len(list_versions(target).numbers) > 1:
        raise AlreadyExists(
            f"the table at {target.uri} is not a branch, since its file in {refs.BRANCHES} is missing. Move it "
            "away or choose another name"
        )
    return found


def _commit(target: Location, ours: Transaction, fork: Fork, runtime: Runtime) -> Snapshot:
    since = Version(fork.source.version - 1)
    return commit(target, ours, base=fork, since=since, attempts=ATTEMPTS, runtime=runtime).snapshot


def _base_of(source: Snapshot) -> BasePath:
    """Return a base path for the source. The base paths of the source keep their ids."""
    manifest = source.manifest
    number = smallest_free_id(manifest.base_paths, first=0)
    return BasePath(source.location.uri, number, name=manifest.branch, is_dataset_root=True)


def _record_clone_in_source(source: Snapshot, uri: str, uuid: str) -> None:
    """Record the clone in the source table, so that cleanup there keeps the version. A source without write permission
    is cloned all the same."""
    record = json.dumps({"version": source.version, "uri": uri}).encode()
    store, _path = source.location.resolve(refs.CLONES)
    with suppress(StorageError):
        store.put(f"{refs.CLONES}/{uuid}.json", record)


def _copy_files(source: Snapshot, target: Location) -> None:
    """Copy all files of the version under their names. Files of several base paths end up in one directory, so two of
    them must not have the same name."""
    places: dict[str, str] = {}
    for place, own in _files_of(source):
        if places.setdefault(own, place) != place:
            raise InvalidInput(
                f"{source.location.uri}: two files of this version in different locations are called {own}, and a deep "
                "clone would keep one of them. Make a shallow clone and compact it"
            )
    for own, place in track(tuple(places.items()), "copy files", "files"):
        origin, path = source.location.resolve(place)
        copy_file(origin, path, target.store, own)


def _copy_ingest_records(source: Snapshot, target: Location) -> None:
    """Copy the ingest records, since the clone has the rows of the ingested files. A record that is missing is reported
    when the clone ingests."""
    manifest = source.manifest
    main = source.location.locate_main_branch(manifest.branch)
    for segment in ingest_records.segments_of(manifest.config, path=f"{source.location.uri}/{manifest.path}"):
        with suppress(NotFound):
            copy_file(main.own_store, segment.path, target.store, segment.path)


def _files_of(source: Snapshot) -> list[tuple[str, str]]:
    """Return the location of each file of this version, and its location in a table without base paths."""
    files: list[tuple[str, str]] = []
    store, manifest = source.location.store, source.manifest
    for fragment in manifest.fragments:
        for file in (*fragment.files, *(overlay.file for overlay in overlays_of(fragment))):
            files.append((file.qualified_path, f"{naming.DATA}/{file.path}"))
            stem = file.qualified_path.removesuffix(".lance")
            own_stem = f"{naming.DATA}/{file.path}".removesuffix(".lance")
            if _has_blobs(source):
                files += [(info.path, own_stem + info.path.removeprefix(stem)) for info in store.list(stem)]
        if deleted := fragment.deletion_file:
            files.append((deleted.qualified_path, deleted.path))
    for index in manifest.indices:
        own = f"{naming.INDICES}/{index.uuid}"
        names = index.file_names or [info.path.rpartition("/")[2] for info in store.list(index.qualified_path)]
        files += [(f"{index.qualified_path}/{name}", f"{own}/{name}") for name in names]
    return files


def _has_blobs(source: Snapshot) -> bool:
    fields = source.manifest.schema.fields
    return any(b"lance.blob.v2" in node.metadata.values() for top in fields for node in top.walk())
