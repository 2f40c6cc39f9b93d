"""Tables that begin as a version of another: branches, and clones, shallow and deep.

    branch    under the main line's root, keeps the table's identity; a file in `_refs/` makes it visible
    clone     anywhere, a table of its own; shallow, it goes on reading the source's files, which nothing there protects

Each is one commit of a manifest that has the source's version number. A deep clone copies files first; left behind half
way it is a directory without a version, which is no table.
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
from lance_core.errors import AlreadyExists, InvalidInput, NotFound, StorageError
from lance_core.format import ingest_records, naming, refs
from lance_core.format.base_path import BasePath, free_id
from lance_core.format.ids import Version
from lance_core.format.operations import Clone
from lance_core.format.refs import Branch
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.storage.factory import is_at_or_below
from lance_core.storage.tree_operations import copy, prune, remove
from lance_core.transactions.apply import Fork
from lance_core.versions.location import Location, check_manifest_store, manifest_store_config
from lance_core.versions.refs import created, read_branch, read_branches, read_tags, resolve_version
from lance_core.versions.snapshot import Snapshot, exists, list_versions, load_at, load_latest, load_transaction
from lance_core.versions.table_id import TABLE_ID

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branches(Generic[T]):
    """The branches of a table: lines of versions that begin at one of its versions and go their own way.

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

    def list(self) -> dict[str, Branch]:
        return read_branches(self._main.store)

    def create(self, name: str, version: int | None = None, *, tag: str | None = None) -> T:
        """From this version, from another one of this line, or from what a tag stands for."""
        refs.check_new_branch_name(name)
        if version is not None and tag is not None:
            raise InvalidInput("a branch begins at a version or at a tag; give one of them")
        source = self._snapshot
        if tag is not None:
            source = resolve_version(self._main, tag=tag)
        elif version is not None and (number := validation.check_version_number(version)) != source.version:
            source = load_at(source.location, number)
        return self._opened(_branch(self._main, source, name, runtime=self._runtime))

    def delete(self, name: str) -> None:
        """With all that was written to it. Refused while another branch began at it, or a tag stands for a version of
        it. What an interrupted deletion left behind goes too."""
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
        # Its versions go first: what is left of an interruption is no table.
        for part in parts:
            remove(main.own_store, part)
        prune(main.own_store, "/".join(directory.split("/")[:2]))

    @property
    def _main(self) -> Location:
        return self._snapshot.location.main_line(self._snapshot.manifest.branch)


def clone(source: Snapshot, uri: str | os.PathLike[str], *, shallow: bool, runtime: Runtime) -> Snapshot:
    """The table that begins as this version."""
    shallow = validation.check_flag(shallow, "shallow")
    places = source.location.places(source.manifest.branch)
    target = source.location.elsewhere(validation.check_uri(uri), bases=places if shallow else ())
    if exists(target):
        raise AlreadyExists(f"there is a table at {target.uri} already; clone to a place without one")
    if any(is_at_or_below(target.uri, place) for place in places):
        raise InvalidInput(
            f"{target.uri} is inside of {source.location.uri}, whose cleanup may remove what it does not know; clone "
            "to a place outside of it"
        )
    check_not_detached(source)
    check_manifest_store(source.location, source.manifest)
    uuid = str(runtime.new_uuid())
    if shallow:
        _tell_source(source, target.uri, uuid)
        check_not_being_swept(source.location.own_store, Lease("cloning it", source.version))
        load_at(source.location, source.version)
    else:
        _copy_files(source, target)
    _copy_record(source, target)
    manifest = source.manifest
    config = {TABLE_ID: uuid} if TABLE_ID in manifest.config else {}
    config |= manifest_store_config(target)
    born = Fork(manifest, _base_of(source) if shallow else None, config=config)
    operation = Clone(shallow, manifest.branch if shallow else None, manifest.version, source.location.uri, None)
    return _commit(target, Transaction(manifest.version, uuid, operation, {}), born, runtime)


def _branch(main: Location, source: Snapshot, name: str, *, runtime: Runtime) -> Snapshot:
    path = refs.branch_path(name)
    if main.store.head(path) is not None:
        raise AlreadyExists(f"{main.uri} has a branch {name!r} already; delete it, or take another name")
    check_not_detached(source)
    check_manifest_store(source.location, source.manifest)
    manifest = source.manifest
    parent = manifest.branch
    operation = Clone(True, parent, manifest.version, source.location.uri, name)
    ours = Transaction(manifest.version, str(runtime.new_uuid()), operation, {})
    target = main.branch(name)
    held = acquire(source.location.own_store, Lease("beginning a branch at it", manifest.version), runtime)
    load_at(source.location, manifest.version)
    try:
        begun = _commit(target, ours, Fork(manifest, _base_of(source), name), runtime)
    except AlreadyExists:
        begun = _left_behind(target, operation)
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
    if not created(main.store, path, refs.encode_branch(info)):
        raise AlreadyExists(
            f"{main.uri} got a branch {name!r} from somebody else just now; look at it, or take another"
        )
    release(source.location.own_store, held)
    return begun


def _left_behind(target: Location, operation: Clone) -> Snapshot:
    """What an interrupted creation of the same branch made; nobody has seen it, so it can be gone on with."""
    found = load_latest(target)
    made_by = load_transaction(target, found.manifest)
    if made_by is None or made_by.operation != operation or len(list_versions(target).numbers) > 1:
        raise AlreadyExists(
            f"there is a table at {target.uri} that is no branch: its file in {refs.BRANCHES} is missing. Move it "
            "aside, or take another name"
        )
    return found


def _commit(target: Location, ours: Transaction, born: Fork, runtime: Runtime) -> Snapshot:
    since = Version(born.source.version - 1)
    return commit(target, ours, base=born, since=since, attempts=ATTEMPTS, runtime=runtime).snapshot


def _base_of(source: Snapshot) -> BasePath:
    """The source, as a place where files are; its own bases keep their numbers."""
    manifest = source.manifest
    number = free_id(manifest.base_paths, first=0)
    return BasePath(source.location.uri, number, name=manifest.branch, is_dataset_root=True)


def _tell_source(source: Snapshot, uri: str, uuid: str) -> None:
    """So that cleanup there knows of this reader. A source that only lets itself be read is cloned nevertheless."""
    record = json.dumps({"version": source.version, "uri": uri}).encode()
    store, _path = source.location.resolved(refs.CLONES)
    with suppress(StorageError):
        store.put(f"{refs.CLONES}/{uuid}.json", record)


def _copy_files(source: Snapshot, target: Location) -> None:
    """Under the names they have. Those of several bases come together, so two that differ may not share one."""
    places: dict[str, str] = {}
    for place, own in _files_of(source):
        if places.setdefault(own, place) != place:
            raise InvalidInput(
                f"{source.location.uri}: two files of this version, in different places, are called {own}; a deep "
                "clone would keep one of them. Make a shallow one, and compact it"
            )
    for own, place in places.items():
        origin, path = source.location.resolved(place)
        copy(origin, path, target.store, own)


def _copy_record(source: Snapshot, target: Location) -> None:
    """Of which files were ingested: the clone has their rows, however it reads them. What is missing is told there."""
    manifest = source.manifest
    main = source.location.main_line(manifest.branch)
    for segment in ingest_records.segments_of(manifest.config, path=f"{source.location.uri}/{manifest.path}"):
        with suppress(NotFound):
            copy(main.own_store, segment.path, target.store, segment.path)


def _files_of(source: Snapshot) -> list[tuple[str, str]]:
    """Where each file of this version is, and where a table without bases keeps it."""
    files: list[tuple[str, str]] = []
    store, manifest = source.location.store, source.manifest
    for fragment in manifest.fragments:
        for file in fragment.files:
            files.append((file.place, f"{naming.DATA}/{file.path}"))
            stem = file.place.removesuffix(".lance")
            own_stem = f"{naming.DATA}/{file.path}".removesuffix(".lance")
            if _has_blobs(source):
                files += [(info.path, own_stem + info.path.removeprefix(stem)) for info in store.list(stem)]
        if deleted := fragment.deletion_file:
            files.append((deleted.place, deleted.path))
    for index in manifest.indices:
        own = f"{naming.INDICES}/{index.uuid}"
        names = index.file_names or [info.path.rpartition("/")[2] for info in store.list(index.place)]
        files += [(f"{index.place}/{name}", f"{own}/{name}") for name in names]
    return files


def _has_blobs(source: Snapshot) -> bool:
    fields = source.manifest.schema.fields
    return any(b"lance.blob.v2" in node.metadata.values() for top in fields for node in top.walk())
