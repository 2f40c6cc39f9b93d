"""Where a table is: its URI, the store of its metadata and the codec of its data files, opened together; and which
other places its versions may read from.

A manifest can name any place as the home of its files, and nobody vouches for a manifest. A place is opened when a file
in it is wanted, and only if it is the table's own, its main line's where it is a branch, or one that the caller allowed
(`bases=`).
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from urllib.parse import unquote

from lance_core import validation
from lance_core.datafiles.bases import BasedCodec, BasedStore, OpenBase
from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import refs
from lance_core.format.base_path import BasePath, by_id
from lance_core.format.manifest import Manifest
from lance_core.storage.factory import is_at_or_below, open_store, without_secrets
from lance_core.storage.manifest_stores.factory import open_manifest_store, split_uri
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.options import bound
from lance_core.storage.store import Store

MANIFEST_STORE = "lance_assets.manifest_store"
"""The config key of a table that was created with a manifest store: which kind it is."""


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """How places are reached, and which may be besides the table's own."""

    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    durable: bool = True
    bases: tuple[str, ...] = ()
    manifest_store: ManifestStore | None = field(default=None, repr=False)
    """Where versions are reserved; None: the store of the table decides who was first."""


@dataclass(frozen=True, slots=True)
class Location:
    uri: str
    """Fit for messages: without credentials."""
    store: Store
    codec: DataCodec
    access: AccessOptions = AccessOptions()

    @property
    def address(self) -> str:
        """The URI by which it is opened again, the manifest store included where a URI can name it."""
        manifests = self.access.manifest_store
        return self.uri if manifests is None else manifests.named_in(self.uri)

    @property
    def own_store(self) -> Store:
        """Without the places of a version."""
        return self.store.own if isinstance(self.store, BasedStore) else self.store

    @property
    def key(self) -> Hashable:
        """Of the same table, reached the same way. With other credentials it is another one; so it is by a store that
        cannot be compared."""
        store = self.own_store
        try:
            hash(store)
        except TypeError:
            return self.uri, id(store)
        return self.uri, store

    def elsewhere(self, uri: str, *, bases: Sequence[str] = ()) -> "Location":
        """Another table, reached the same way; `bases` are allowed besides."""
        access = self.access
        manifests = None if split_uri(uri)[1] else access.manifest_store
        return locate(
            uri,
            storage_options=bound(access.storage_options, own=self.uri, other=uri),
            durable=access.durable,
            bases=tuple(dict.fromkeys((*access.bases, *bases))),
            manifest_store=manifests,
        )

    def outside(self, uri: str, branch: str | None) -> tuple[Store, str]:
        """The store that has a file which the table, where it is this branch, only refers to, and what it calls it."""
        shown = without_secrets(uri)
        directory, _, name = uri.rpartition("/")
        if "://" not in directory or not name:
            raise InvalidInput(f"{self.uri} refers to a blob at {shown!r}, which is no absolute URI of a file")
        if not any(is_at_or_below(uri, place) for place in (*self.places(branch), *self.access.bases)):
            raise InvalidInput(
                f"{self.uri} refers to a blob outside of the table, at {shown}. If you trust what is there, open "
                f"the table with bases={[*self.access.bases, without_secrets(directory)]}"
            )
        return self.elsewhere(directory).store, unquote(name)

    def branch(self, name: str) -> "Location":
        """Of this main line."""
        return self.elsewhere(f"{self.uri}/{refs.branch_directory(name)}")

    def main_line(self, branch: str | None) -> "Location":
        """Where the references are, for a location that is this branch."""
        if branch is None:
            return self
        if (uri := self.main_uri(branch)) is None:
            raise Corrupt(
                f"says that it is the branch {branch!r}, and does not lie where that would; a branch is not moved by "
                "itself. Clone it, or move the whole table",
                path=self.uri,
                field="branch",
            )
        return self.elsewhere(uri)

    def places(self, branch: str | None) -> tuple[str, ...]:
        """What is the table's own: its root and, where it is this branch, that of its main line."""
        main = None if branch is None else self.main_uri(branch)
        return (self.uri,) if main is None else (self.uri, main)

    def main_uri(self, branch: str) -> str | None:
        """None unless the table really lies in a branch's place: what its manifest says of itself is not enough."""
        directory = f"/{refs.TREE}/{branch}"
        if not (refs.is_branch_name(branch) and self.uri.endswith(directory)):
            return None
        return self.uri.removesuffix(directory)

    def resolved(self, path: str) -> tuple[Store, str]:
        """The store that has a file of this version, and what it calls it."""
        return self.store.at(path) if isinstance(self.store, BasedStore) else (self.store, path)

    def of(self, manifest: Manifest) -> "Location":
        """As this version sees it: with its base paths."""
        return self.with_bases(manifest.base_paths, manifest.branch, path=manifest.path)

    def with_bases(self, bases: Sequence[BasePath], branch: str | None, *, path: str) -> "Location":
        store = self.own_store
        codec = self.codec.own if isinstance(self.codec, BasedCodec) else self.codec
        if not bases:
            return self if store is self.store else replace(self, store=store, codec=codec)
        opened = cache(self._opener(by_id(bases, path=f"{self.uri}/{path}"), branch, path))
        return replace(self, store=BasedStore(store, opened), codec=BasedCodec(codec, opened))

    def _opener(self, bases: Mapping[int, BasePath], branch: str | None, path: str) -> Callable[[int], OpenBase]:
        def opened(base_id: int) -> OpenBase:
            if base_id not in bases:
                raise Corrupt(
                    f"a file is in base path {base_id}, and there is none of this number",
                    path=f"{self.uri}/{path}",
                    field="base_paths",
                )
            base = bases[base_id]
            allowed = (*self.places(branch), *self.access.bases)
            outside = [each.path for each in bases.values() if not any(_is_at_or_below(each.path, a) for a in allowed)]
            if base.path in outside:
                raise InvalidInput(
                    f"{self.uri}: some files of this version are at {base.path!r}, outside the table. If you trust "
                    f"what is there, open the table with bases={[*self.access.bases, *outside]}"
                )
            place = self.elsewhere(base.path)
            return OpenBase(place.store, place.codec, base.is_dataset_root)

        return opened


def locate(
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    durable: bool = True,
    bases: Sequence[str] = (),
    manifest_store: ManifestStore | str | None = None,
) -> Location:
    allowed = validation.places(bases, "bases")
    if storage_options is not None:
        validation.mapping(storage_options, "storage_options")
    durable = validation.flag(durable, "durable")
    place, named = split_uri(uri) if isinstance(uri, str) else (uri, None)
    if named is not None and manifest_store is not None:
        raise InvalidInput("the URI names a manifest store (ddbTableName), and so does manifest_store=; keep one")
    options = dict(storage_options or {})
    manifests = open_manifest_store(named or manifest_store, options)
    store = open_store(place, storage_options=options, durable=durable)
    access = AccessOptions(options, durable, allowed, manifests)
    published = store if manifests is None else TwoPhaseStore(store, manifests, manifests.key(store.description))
    return Location(uri=store.description, store=published, codec=LanceCodec(store), access=access)


def _is_at_or_below(uri: str, directory: str) -> bool:
    """Lance names the manifest store in base paths too; where files are is the same with and without."""
    return is_at_or_below(split_uri(uri)[0], split_uri(directory)[0])


def manifest_store_config(location: Location) -> dict[str, str]:
    """What a new table notes of how its versions are published."""
    manifests = location.access.manifest_store
    return {} if manifests is None else {MANIFEST_STORE: manifests.kind}


def check_manifest_store(location: Location, manifest: Manifest) -> None:
    """That nobody commits past the manifest store of a table, as far as the table tells that it has one."""
    kind = manifest.config.get(MANIFEST_STORE)
    if kind is not None and location.access.manifest_store is None:
        raise InvalidInput(
            f"{location.uri}: versions of this table are reserved in a manifest store ({kind}), and a commit past it "
            "could be overwritten. Open the table with manifest_store=, or, where that store is no longer used by "
            f"anybody, open it with it once more and set_config({{{MANIFEST_STORE!r}: None}})"
        )
