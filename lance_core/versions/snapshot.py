"""What the table is at a version, and what happened since: reading manifests and transactions, never writing.

The newest version is the highest name in `_versions/`. A damaged head is an error that names it: falling back
to an older version would hide rows that were acknowledged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lance_core.coordination.single_flight import SingleFlight
from lance_core.datafiles.row_counts import with_counts
from lance_core.datafiles.row_lineage import with_lineage
from lance_core.errors import Corrupt, CorruptHead, NotFound, Unsupported
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.transaction import Transaction
from lance_core.limits import MANIFEST_BYTES, TRANSACTION_BYTES
from lance_core.storage.store import read_whole
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.versions import version_hint
from lance_core.versions.location import Location


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table, immutable."""

    location: Location
    manifest: Manifest
    scheme: NamingScheme

    @property
    def version(self) -> Version:
        return self.manifest.version


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that exist, ascending, and how they are named."""

    numbers: tuple[Version, ...]
    scheme: NamingScheme


def list_versions(location: Location) -> Versions:
    found: dict[Version, NamingScheme] = {}
    for listed in location.store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(listed.path.rpartition("/")[2]):
            found[parsed[0]] = parsed[1]
    schemes = set(found.values())
    if len(schemes) > 1:
        raise Corrupt(
            "holds manifests of both naming schemes. With no writer at work, open a version by its number and call "
            "migrate_manifest_names() on it",
            path=f"{location.uri}/{naming.VERSIONS}",
            field="names",
        )
    return Versions(tuple(sorted(found)), schemes.pop() if schemes else NamingScheme.V2)


def exists(location: Location) -> bool:
    """Whether there is a table: a version, not merely a
    directory with files of writers that never committed."""
    return bool(version_hint.find_newest(location.own_store) or list_versions(location).numbers)


def load_latest(location: Location) -> Snapshot:
    """As it is now. Threads that look at the same time share a look: one after another they would see the same, and be
    in each other's way."""
    found = _looks.do((location.key, location.access.bases), lambda: _load_latest(location))
    if found.location is location:
        return found
    if found.location.access != location.access:
        return _load_latest(location)
    return replace(found, location=location.of(found.manifest))


_looks: "SingleFlight[Snapshot]" = SingleFlight()


def _load_latest(location: Location) -> Snapshot:
    head, scheme = version_hint.find_newest(location.own_store) or _listed_last(location)
    try:
        return _load(location, head, scheme)
    except NotFound:
        # Others may have committed since it was the newest, and a cleanup have taken it.
        if _listed_last(location)[0] <= head:
            raise
        return _load_latest(location)
    except Corrupt as error:
        raise CorruptHead(
            f"the newest version {head} of this table is damaged: {error.what}. No older version is opened in its "
            f"place, since that would hide what version {head} acknowledged. Read an older one by its "
            "number, or move this file aside once you know that its rows are lost or repeated",
            path=f"{location.uri}/{naming.manifest_path(head, scheme)}",
            field=error.field,
        ) from error


def load_at(location: Location, version: Version) -> Snapshot:
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        try:
            return _load(location, version, scheme)
        except NotFound:
            continue
    numbers = list_versions(location).numbers
    if not numbers:
        raise NotFound(f"there is no Lance table at {location.uri}; create one there, or check the path")
    raise NotFound(f"{location.uri} has no version {version}; it has {ranges(numbers)}")


def load_transaction(location: Location, manifest: Manifest) -> Transaction | None:
    """What made this version; None where its writer left no record."""
    if inline := manifest.inline_transaction:
        return Transaction.decode(inline, path=f"{location.uri}/{manifest.path}")
    name = manifest.transaction_file
    if name is None:
        return None
    if not naming.is_confined(name):
        raise Corrupt("a transaction file's name leaves its directory", path=repr(name), field="transaction_file")
    path = f"{naming.TRANSACTIONS}/{name}"
    try:
        data = read_whole(location.store, path, TRANSACTION_BYTES)
        return Transaction.decode(data, path=f"{location.uri}/{path}")
    except NotFound:
        return None


@dataclass(frozen=True, slots=True)
class History:
    """The head, and everything that was committed after a base, oldest first."""

    head: Snapshot
    others: Sequence[CommittedTransaction]
    gone: Sequence[Version]
    """Those of the others that were cleaned up: what they did, nobody can tell."""


def history_since(
    location: Location,
    since: Version,
    *,
    base: Snapshot | None = None,
    known: Sequence[CommittedTransaction] = (),
    there: Version | None = None,
    look: bool = True,
) -> History | None:
    """None if the table has no versions. `base` and `known` were loaded before: a version never changes, so
    they are not read again. `there` is one that is known to exist, whatever a listing shows; without a `look` nothing
    is listed, and there may be later ones."""
    versions = _line_end(location) if look or base is None else Versions((), base.scheme)
    seen = [*versions.numbers[-1:], *(landed.version for landed in known[-1:]), *([base.version] if base else [])]
    seen += [there] if there else []
    if not seen:
        return None
    loaded = {landed.version: landed for landed in known}
    others: list[CommittedTransaction] = []
    gone: list[Version] = []
    # A listing may be older than what we know, or show a version and miss the one before it, which could be ours:
    # the head is never older than anything seen, never newer than what is looked at here, and every number up to it
    # is asked for.
    newest = max(seen)
    head = base if base and base.version == newest else None
    for version in map(Version, range(since + 1, newest + 1)):
        if version not in loaded:
            try:
                snapshot = head if version == newest and head else _load(location, version, versions.scheme)
            except NotFound:
                if version == newest:
                    raise
                gone.append(version)
                others.append(CommittedTransaction(version, None))
                continue
            head = snapshot if version == newest else head
            loaded[version] = CommittedTransaction.of(snapshot.manifest, load_transaction(location, snapshot.manifest))
        others.append(loaded[version])
    return History(head or load_at(location, newest), others, gone)


def _load(location: Location, version: Version, scheme: NamingScheme) -> Snapshot:
    path = naming.manifest_path(version, scheme)
    data = read_whole(location.store, path, MANIFEST_BYTES)
    try:
        manifest = Manifest.decode(data, path=path, version=version)
    except Corrupt as error:
        raise Corrupt(error.what, path=f"{location.uri}/{error.path}", field=error.field) from error
    except Unsupported as error:
        raise Unsupported(f"{location.uri}/{error}") from error
    here = location.of(manifest)
    counted = with_counts(here.store, here.codec, manifest)
    try:
        return Snapshot(here, with_lineage(here.store, counted), scheme)
    except Unsupported as error:
        raise Unsupported(f"{location.uri}/{error}") from error


def _line_end(location: Location) -> Versions:
    """The newest version, and perhaps others."""
    if found := version_hint.find_newest(location.own_store):
        return Versions((found[0],), found[1])
    return list_versions(location)


def _listed_last(location: Location) -> tuple[Version, NamingScheme]:
    versions = list_versions(location)
    if not versions.numbers:
        raise NotFound(f"there is no Lance table at {location.uri}; create one there, or check the path")
    return versions.numbers[-1], versions.scheme


def ranges(numbers: Sequence[Version]) -> str:
    """`1-4, 7`, shortened in the middle where it is long."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "…", *texts[-3:]])
