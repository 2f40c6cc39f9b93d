"""Table location: the URI of a table, its metadata store and the codec of its data files, opened together, and the
other locations that its versions may read from.

A manifest can name any location as the home of its files, and a manifest is untrusted input. A base is opened only
when one of its files is read, and only if it belongs to the table itself, to the main branch of a branch, or to the
locations that the caller allowed with `bases=`. Start with `locate`.
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from urllib.parse import unquote

from lance_core import validation
from lance_core.datafiles.bases import BasedCodec, BasedStore, OpenBase
from lance_core.datafiles.checksums import Verify
from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import naming, refs
from lance_core.format.base_path import BasePath, by_id
from lance_core.format.manifest import Manifest
from lance_core.storage.factory import (
    TableStore,
    is_at_or_below,
    open_manifest_store,
    open_store,
    split_uri,
    without_secrets,
)
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.options import options_for
from lance_core.storage.store import Store

MANIFEST_STORE = "lance_assets.manifest_store"
"""Config key of a table that was created with a manifest store; the value is the kind of store."""


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Options for access to a table, and the other locations that its versions may read from."""

    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    durable: bool = True
    bases: tuple[str, ...] = ()
    manifest_store: ManifestStore | None = field(default=None, repr=False)
    """Store that reserves version numbers; `None` lets the store of the table decide which writer was first."""
    verify: Verify = Verify.OFF
    """Files that are compared with their checksums before they are decoded."""
    trusted: bool = True
    """`False` if data and index files are decoded in another process (`datafiles/isolated_reader.py`)."""


@dataclass(frozen=True, slots=True)
class Location:
    """Opened location of a table, with the base paths of one version."""

    uri: str
    """URI without credentials, safe for messages."""
    store: Store
    codec: DataCodec
    access: AccessOptions = AccessOptions()

    @property
    def address(self) -> str:
        """URI that opens the table again. It includes the manifest store if a URI can name that store."""
        manifests = self.access.manifest_store
        return self.uri if manifests is None else manifests.qualify_uri(self.uri)

    @property
    def own_store(self) -> Store:
        """Store of the table itself, without the bases of a version."""
        return self.store.own if isinstance(self.store, BasedStore) else self.store

    @property
    def key(self) -> Hashable:
        """Cache key: equal for locations of the same table that are reached in the same way. Other credentials give
        another key, and so does a store that cannot be compared."""
        store = self.own_store
        try:
            hash(store)
        except TypeError:
            return self.uri, id(store)
        return self.uri, store

    def locate_other(self, uri: str, *, bases: Sequence[str] = ()) -> "Location":
        """Return the location of another table, reached with the same options; `bases` are allowed in addition."""
        access = self.access
        manifests = None if split_uri(uri)[1] else access.manifest_store
        return locate(
            uri,
            storage_options=options_for(access.storage_options, own=self.uri, other=uri),
            durable=access.durable,
            bases=tuple(dict.fromkeys((*access.bases, *bases))),
            manifest_store=manifests,
            verify=access.verify,
            trusted=access.trusted,
        )

    def as_untrusted(self) -> "Location":
        """Return this location with data and index files that are decoded in another process."""
        codec = self.codec.own if isinstance(self.codec, BasedCodec) else self.codec
        if not self.access.trusted or not isinstance(codec, LanceCodec):
            return self
        return replace(
            self, store=self.own_store, codec=replace(codec, trusted=False), access=replace(self.access, trusted=False)
        )

    def resolve_external_blob(self, uri: str, branch: str | None) -> tuple[Store, str]:
        """Return the store and path of a blob file that the table only refers to. Raises `InvalidInput` unless the URI
        is below the table, its main branch or an allowed base. `branch` is the branch at this location."""
        safe_uri = without_secrets(uri)
        directory, _, name = uri.rpartition("/")
        if "://" not in directory or not name:
            raise InvalidInput(f"{self.uri} refers to a blob at {safe_uri!r}, which is not an absolute URI of a file")
        if not any(is_at_or_below(uri, allowed) for allowed in (*self.own_uris(branch), *self.access.bases)):
            raise InvalidInput(
                f"{self.uri} refers to a blob outside the table, at {safe_uri}. If you trust that location, open "
                f"the table with bases={[*self.access.bases, without_secrets(directory)]}"
            )
        return self.locate_other(directory).store, unquote(name)

    def locate_branch(self, name: str) -> "Location":
        """Return the location of a branch. This location is the one of the main branch."""
        return self.locate_other(f"{self.uri}/{refs.branch_directory(name)}")

    def locate_main_branch(self, branch: str | None) -> "Location":
        """Return the location of the main branch, where the references are. `branch` is the branch at this location."""
        if branch is None:
            return self
        if (uri := self.main_branch_uri(branch)) is None:
            raise Corrupt(
                f"claims to be the branch {branch!r}, but is not located where that branch would be. A branch cannot "
                "be moved by itself: clone it, or move the whole table",
                path=self.uri,
                field="branch",
            )
        return self.locate_other(uri)

    def own_uris(self, branch: str | None) -> tuple[str, ...]:
        """Return the URIs that belong to the table: its root and, for a branch, the root of the main branch."""
        main = None if branch is None else self.main_branch_uri(branch)
        return (self.uri,) if main is None else (self.uri, main)

    def main_branch_uri(self, branch: str) -> str | None:
        """Return the URI of the main branch, or `None` if the branch cannot be at this location. A manifest may contain
        any branch name."""
        directory = f"/{refs.TREE}/{branch}"
        if not (refs.is_branch_name(branch) and self.uri.endswith(directory)):
            return None
        return self.uri.removesuffix(directory)

    def resolve(self, path: str) -> tuple[Store, str]:
        """Return the store and path of a file of this version."""
        return self.store.resolve(path) if isinstance(self.store, BasedStore) else (self.store, path)

    def for_manifest(self, manifest: Manifest) -> "Location":
        """Return this location with the base paths of a version."""
        return self.with_bases(manifest.base_paths, manifest.branch, path=manifest.path)

    def with_bases(self, bases: Sequence[BasePath], branch: str | None, *, path: str) -> "Location":
        store = self.own_store
        codec = self.codec.own if isinstance(self.codec, BasedCodec) else self.codec
        if not bases:
            return self if store is self.store else replace(self, store=store, codec=codec)
        opened = cache(self._opener(by_id(bases, path=f"{self.uri}/{path}"), branch, path))
        return replace(self, store=BasedStore(store, opened), codec=BasedCodec(codec, opened))

    def _opener(self, bases: Mapping[int, BasePath], branch: str | None, path: str) -> Callable[[int], OpenBase]:
        def open_base(base_id: int) -> OpenBase:
            if base_id not in bases:
                raise Corrupt(
                    f"a file is in base path {base_id}, but the manifest has no base path with this id",
                    path=f"{self.uri}/{path}",
                    field="base_paths",
                )
            base = bases[base_id]
            allowed = (*self.own_uris(branch), *self.access.bases)
            outside = [each.path for each in bases.values() if not any(_is_at_or_below(each.path, a) for a in allowed)]
            if base.path in outside:
                raise InvalidInput(
                    f"{self.uri}: some files of this version are at {base.path!r}, outside the table. If you trust "
                    f"that location, open the table with bases={[*self.access.bases, *outside]}"
                )
            other = self.locate_other(base.path)
            return OpenBase(other.store, other.codec, base.is_dataset_root)

        return open_base


def locate(
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    durable: bool = True,
    bases: Sequence[str] = (),
    manifest_store: ManifestStore | str | None = None,
    verify: Verify | str = Verify.OFF,
    trusted: bool = True,
) -> Location:
    """Validate the arguments of a caller, and open the store of a table and its codec. No manifest is read."""
    allowed = validation.check_locations(bases, "bases")
    if storage_options is not None:
        validation.check_mapping(storage_options, "storage_options")
    durable = validation.check_flag(durable, "durable")
    mode = verify if isinstance(verify, Verify) else validation.check_choice(Verify, verify, "verify")
    table_uri, store_uri = split_uri(uri) if isinstance(uri, str) else (uri, None)
    if store_uri is not None and manifest_store is not None:
        raise InvalidInput(
            "both the URI (ddbTableName) and manifest_store= name a manifest store; pass only one of them"
        )
    options = dict(storage_options or {})
    manifests = open_manifest_store(store_uri or manifest_store, options)
    store = open_store(table_uri, storage_options=options, durable=durable)
    trusted = validation.check_flag(trusted, "trusted")
    access = AccessOptions(options, durable, allowed, manifests, mode, trusted)
    published = store if manifests is None else TwoPhaseStore(store, manifests, manifests.table_key(store.description))
    return Location(uri=store.description, store=published, codec=open_codec(store, mode, trusted), access=access)


def open_codec(store: TableStore, verify: Verify, trusted: bool) -> DataCodec:
    """Return the codec for the data files of a table. A simulation replaces it."""
    return LanceCodec(store, verify, trusted)


def _is_at_or_below(uri: str, directory: str) -> bool:
    """Compare two URIs without their manifest stores. Lance also writes the manifest store into base paths; the files
    are in the same place with and without it."""
    return is_at_or_below(split_uri(uri)[0], split_uri(directory)[0])


def manifest_store_config(location: Location) -> dict[str, str]:
    """Return the config entries with which a new table records its manifest store."""
    manifests = location.access.manifest_store
    return {} if manifests is None else {MANIFEST_STORE: manifests.kind}


def check_manifest_store(location: Location, manifest: Manifest) -> None:
    """Raise `InvalidInput` if a commit would bypass the manifest store of a table: the kind that its config names, or
    the store that has entries of its versions."""
    kind, manifest_store = manifest.config.get(MANIFEST_STORE), location.access.manifest_store
    if manifest_store is not None and manifest_store.kind != kind:
        check_opened_with_own_manifest_store(location, manifest)
    if kind is not None and manifest_store is None:
        raise InvalidInput(
            f"{location.uri}: versions of this table are reserved in a manifest store ({kind}), and a commit "
            "that bypasses it could be overwritten. Open the table with manifest_store=. If no writer uses that store "
            f"any more, open the table with it once more and call set_config({{{MANIFEST_STORE!r}: None}})"
        )


def check_opened_with_own_manifest_store(location: Location, manifest: Manifest) -> None:
    """Raise `InvalidInput` if a table was opened with a manifest store that is not its own: of another kind, or without
    any of its versions. Two stores would both reserve the next version."""
    manifest_store = location.access.manifest_store
    if manifest_store is None or naming.is_detached(manifest.version):
        return
    kind = manifest.config.get(MANIFEST_STORE)
    if kind not in (None, manifest_store.kind):
        raise InvalidInput(
            f"{location.uri}: versions of this table are reserved in a manifest store of the kind {kind!r}, not in "
            f"{manifest_store.description}; open the table with manifest_store= as it was passed to create"
        )
    if manifest_store.newest_entry(manifest_store.table_key(location.uri)) is None:
        created = "without a manifest store" if kind is None else f"with another {kind} manifest store, or was moved"
        raise InvalidInput(
            f"{location.uri}: {manifest_store.description} has no version of this table, which was created {created}. "
            "Open it as it was created. If all of its writers use this store from now on, add its versions first: "
            "python -m lance_core fsck --repair entries --apply, with this manifest store"
        )
