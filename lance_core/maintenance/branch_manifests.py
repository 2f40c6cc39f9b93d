"""Branch manifests: lists the manifests of a branch for a cleanup, and reads them.

A cleanup reads each manifest for its references, and again when it removes the manifest. Start with `list_manifests`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.errors import LanceError, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.concurrency import map_requests, requests_max
from lance_core.storage.store import ObjectInfo, load_details, read_whole
from lance_core.versions.file_inventory import FileReferences, references_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import versions_of

YOUNG_VERSION_AGE = timedelta(minutes=1)
"""Versions younger than this stay: a writer that listed the versions before one of them existed may be about to put the
same number and would find the number free. A writer that takes longer checks again (`commit/fencing.py`)."""
KEPT_BYTES_MAX = 64 * 2**20
"""Bytes of manifests that a cleanup keeps until they are removed."""
_DECODED_BYTES_MAX = 4 * 2**20
"""Maximum bytes of manifests whose decoded references a cleanup caches. These take several times as much memory."""
READ_BY_CODEC_MIN = 32
"""Minimum number of manifests that the codec reads instead of the store: loading the codec takes time."""


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """Manifest of a version, as a listing shows it."""

    path: str
    modified: datetime
    size: int


@dataclass(frozen=True, slots=True)
class ListedManifests:
    """Manifests of a branch, and of its detached versions."""

    versions: Mapping[Version, ListedManifest]
    """Ascending."""
    detached: Mapping[Version, ListedManifest]


def list_manifests(location: Location, *, now: datetime) -> ListedManifests:
    """List the manifests. Raise if both naming schemes occur in the table.

    A listing may omit versions of the last minute, so these are requested by name.
    """
    listed = list(load_details(location.store.list(naming.VERSIONS)))
    scheme = versions_of(location, listed).scheme
    manifests, detached = {}, {}
    for info in listed:
        name, manifest = info.path.rpartition("/")[2], ListedManifest(info.path, info.modified, info.size)
        if parsed := naming.parse_manifest_name(name):
            manifests[parsed[0]] = manifest
        elif number := naming.parse_detached_name(name):
            detached[number] = manifest
    settled = (version for version, each in manifests.items() if now - each.modified > YOUNG_VERSION_AGE)
    following = max(settled, default=Version(0))
    newest = max(manifests, default=following)
    while following <= newest:
        following = Version(following + 1)
        if following not in manifests and (unlisted := location.store.head(naming.manifest_path(following, scheme))):
            manifests[following] = ListedManifest(unlisted.path, unlisted.modified, unlisted.size)
            newest = max(newest, following)
    return ListedManifests(dict(sorted(manifests.items())), detached)


def expired_detached(
    detached: Mapping[Version, ListedManifest], reasons: Mapping[Version, Sequence[str]], *, older_than: datetime
) -> tuple[dict[Version, ListedManifest], dict[Version, tuple[str, ...]]]:
    """Return the manifests of detached versions that expire, and the versions that are old enough but retained."""
    old = {version: each for version, each in detached.items() if each.modified < older_than}
    retained = {version: tuple(reasons[version]) for version in old if version in reasons}
    return {version: each for version, each in old.items() if version not in retained}, retained


class ManifestReader:
    """Reads manifests, and keeps the bytes of the small ones, which are read again when they are removed."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0
        self._references: dict[str, FileReferences] = {}

    def preload(self, listed: Iterable[ObjectInfo]) -> None:
        """Read the oldest manifests among the listed files, up to `KEPT_BYTES_MAX`, and decode the first of them while
        others are read."""
        names = ((info, info.path.rpartition("/")[2]) for info in load_details(listed))
        oldest_first = [info for info, name in names if naming.parse_manifest_name(name)][::-1]
        total = accumulate(info.size for info in oldest_first)
        small = [(info, size) for info, size in zip(oldest_first, total, strict=True) if size <= KEPT_BYTES_MAX]
        store = self._location.own_store
        codec = self._location.codec if requests_max(store) > 1 and len(small) >= READ_BY_CODEC_MIN else None

        def load(info: ObjectInfo, total: int) -> None:
            data = codec.read_object(info.path, info.size) if isinstance(codec, LanceCodec) else self.read(info.path)
            if data is None or len(data) != info.size:
                return
            self._keep(info.path, data)
            if total <= _DECODED_BYTES_MAX:
                with suppress(LanceError):  # a caller that needs it decodes it again, and reports the error
                    self._references[info.path] = references_of(Manifest.decode(data, path=info.path))

        def load_if_it_exists(each: tuple[ObjectInfo, int]) -> None:
            with suppress(NotFound):
                load(*each)

        for _ in map_requests(store, load_if_it_exists, small):
            pass

    def referenced_keys(self, manifests: Iterable[ListedManifest], *, own_only: bool = False) -> set[str]:
        """Return the keys of all files that these manifests reference, or only of those in the table itself.

        A manifest that cannot be read ends the cleanup, since its references are unknown. A missing one was removed by
        another cleanup.
        """

        def read(manifest: ListedManifest) -> frozenset[str]:
            references = self._references.get(manifest.path)
            if references is None:
                data = self.read(manifest.path)
                if data is None:
                    return frozenset()
                references = references_of(Manifest.decode(data, path=manifest.path))
            return references.own if own_only else references.own | references.in_other_bases

        store = self._location.store
        return set().union(*map_requests(store, read, manifests, size_of=lambda manifest: manifest.size))

    def read(self, path: str) -> bytes | None:
        """Return a manifest; `None` if it does not exist."""
        if (known := self._kept.get(path)) is not None:
            return known
        try:
            data = read_whole(self._location.store, path, MANIFEST_BYTES)
        except NotFound:
            return None
        self._keep(path, data)
        return data

    def _keep(self, path: str, data: bytes) -> None:
        if path not in self._kept and self._kept_bytes + len(data) <= KEPT_BYTES_MAX:
            self._kept[path] = data
            self._kept_bytes += len(data)
