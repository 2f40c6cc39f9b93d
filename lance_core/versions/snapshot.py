"""Table snapshots: one immutable version of a table, and the transactions committed since. This module reads manifests
and transactions, and never writes.

The newest version is the highest name in `_versions/`. If its manifest is damaged, loading raises an error that names
it: falling back to an older version would hide rows whose commit was acknowledged.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_core.coordination.single_flight import SingleFlight
from lance_core.datafiles.manifest_completion import with_counts, with_lineage
from lance_core.errors import Corrupt, CorruptHead, NotFound, Unsupported
from lance_core.format import manifest_file, naming
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Clone
from lance_core.format.transaction import Transaction
from lance_core.limits import MANIFEST_BYTES, TRANSACTION_BYTES
from lance_core.storage.lru_cache import LruCache
from lance_core.storage.store import ObjectDetails, ObjectInfo, SupportsOrderedListing, read_decoded
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.versions import version_hint
from lance_core.versions.location import Location


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One immutable version of a table."""

    location: Location
    manifest: Manifest
    scheme: NamingScheme
    tag: str = field(default="", compare=False, repr=False)
    """Entity tag of the manifest file, if a listing returned one before the file was read; otherwise empty."""

    @property
    def version(self) -> Version:
        return self.manifest.version


@dataclass(frozen=True, slots=True)
class Versions:
    """Numbers of the existing versions, ascending, and the naming scheme of their manifests."""

    numbers: tuple[Version, ...]
    scheme: NamingScheme
    listed: Mapping[Version, ObjectInfo] = field(default_factory=dict, compare=False, repr=False)
    """Manifest files that a listing returned, by version."""

    def tag_of(self, version: Version) -> str:
        """Return the entity tag of a manifest file; an empty string if it is unknown."""
        info = self.listed.get(version)
        return info.tag if isinstance(info, ObjectDetails) else ""


def list_versions(location: Location) -> Versions:
    """List the versions of a table. Raises `Corrupt` if manifests of both naming schemes exist."""
    return versions_of(location, location.store.list(naming.VERSIONS))


def versions_of(location: Location, listed: Iterable[ObjectInfo]) -> Versions:
    """Return the versions among the listed objects of the directory of manifests, as `list_versions` does."""
    found = [(parsed, each) for each in listed if (parsed := naming.parse_manifest_name(_name_of(each)))]
    schemes = {scheme for (_number, scheme), _info in found}
    if len(schemes) > 1:
        raise _mixed_names_error(location)
    infos = {number: info for (number, _scheme), info in found}
    return Versions(tuple(sorted(infos)), schemes.pop() if schemes else NamingScheme.V2, infos)


def _name_of(info: ObjectInfo) -> str:
    return info.path.rpartition("/")[2]


def check_one_naming_scheme(location: Location, newest: Version | None = None) -> None:
    """Raise `Corrupt` if manifests of both naming schemes exist. A writer must not continue one of two histories, and
    the newest version is often found without a listing. Each process checks a table once.

    Names of the old scheme sort before or after all names of the new one. On an ordered store, every search for the
    newest version lists the names that sort first, so this function lists only those that sort last. If `newest`
    is a low version number, it lists nothing: `read_history`, which every commit calls, lists all names at once."""
    if _uniform_names.get(location.key):
        return
    store = location.store
    if newest is not None and newest < LISTED_WHOLE_MAX and isinstance(location.own_store, SupportsOrderedListing):
        return
    if isinstance(store, SupportsOrderedListing):
        listed = store.list(naming.VERSIONS, start_after=_AFTER_NEW_NAMES)
        schemes = [parsed[1] for info in listed if (parsed := naming.parse_manifest_name(_name_of(info)))]
        if NamingScheme.V1 in schemes:
            list_versions(location)
    else:
        list_versions(location)
    _uniform_names.put(location.key, True)


_AFTER_NEW_NAMES = "18446744073709551616"
"""Name that sorts after all names of the new scheme, which begin with a number below 2**64."""
_uniform_names: LruCache[Hashable, bool] = LruCache(1000)
"""Tables that passed `check_one_naming_scheme`."""
PAGE_NAMES = 1000
"""Names in one page of a listing."""
LISTED_WHOLE_MAX = 300
"""Version number below which a writer lists all versions of a table in one request instead of two shorter ones. They
and the few other files of their directory fit in one page."""


def _mixed_names_error(location: Location) -> Corrupt:
    return Corrupt(
        "contains manifests of both naming schemes. Stop all writers, open a version by its number and call "
        "migrate_manifest_names() on it",
        path=f"{location.uri}/{naming.VERSIONS}",
        field="names",
    )


def table_exists(location: Location) -> bool:
    """Return whether a table exists. A directory with files of writers that never committed is not a table."""
    return bool(_list_newest(location).numbers)


def load_latest(location: Location, known: Snapshot | None = None) -> Snapshot:
    """Load the newest version, or return `known` if a listing shows that it still is the newest.

    Concurrent threads share one load: separate loads would return the same version, and slow each other down.
    """
    snapshot = shared_loads.do((location.key, location.access.bases), lambda: _load_latest(location, known))
    if snapshot.location is location:
        return snapshot
    if snapshot.location.access != location.access:
        return _load_latest(location)
    return replace(snapshot, location=location.for_manifest(snapshot.manifest))


shared_loads: "SingleFlight[Snapshot]" = SingleFlight()
"""Loads of newest versions that concurrent threads share."""


def _load_latest(location: Location, known: Snapshot | None = None) -> Snapshot:
    versions = _list_newest(location)
    if not versions.numbers:
        raise _no_table_error(location)
    head, scheme, tag = versions.numbers[-1], versions.scheme, versions.tag_of(versions.numbers[-1])
    if known is not None and tag and (known.version, known.scheme, known.tag) == (head, scheme, tag):
        return known
    try:
        return replace(load_named(location, head, scheme), tag=tag)
    except NotFound:
        # Other writers may have committed since, and a cleanup may have removed this version.
        newest = list_versions(location).numbers
        if not newest:
            raise _no_table_error(location) from None
        if newest[-1] <= head:
            raise
        return _load_latest(location)
    except Corrupt as error:
        raise CorruptHead(
            f"the newest version {head} of this table is damaged: {error.what}. No older version is opened instead, "
            f"since that would hide rows whose commit as version {head} was acknowledged. Open an older version by its "
            "number, or move this file aside once you know that its rows are lost or were written again",
            path=f"{location.uri}/{naming.manifest_path(head, scheme)}",
            field=error.field,
        ) from error


def load_at(location: Location, version: Version) -> Snapshot:
    """Load one version. Raises `NotFound`, which lists the existing versions."""
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        try:
            return load_named(location, version, scheme)
        except NotFound:
            continue
    numbers = list_versions(location).numbers
    if not numbers:
        raise _no_table_error(location)
    raise NotFound(f"{location.uri} has no version {version}; it has {format_ranges(numbers)}")


def load_transaction(location: Location, manifest: Manifest) -> Transaction | None:
    """Load the transaction of a version; `None` if its writer recorded none."""
    if inline := manifest.inline_transaction:
        return Transaction.decode(inline, path=f"{location.uri}/{manifest.path}")
    name = manifest.transaction_file
    if name is None:
        return None
    if not naming.is_confined(name):
        raise Corrupt(
            "the name of a transaction file points outside its directory", path=repr(name), field="transaction_file"
        )
    path = f"{naming.TRANSACTIONS}/{name}"
    try:
        return read_decoded(
            location.store,
            path,
            TRANSACTION_BYTES,
            lambda data: Transaction.decode(data, path=f"{location.uri}/{path}"),
        )
    except NotFound:
        return None


@dataclass(frozen=True, slots=True)
class History:
    """The newest version, and every transaction committed after a base version, oldest first."""

    head: Snapshot
    others: Sequence[CommittedTransaction]
    missing: Sequence[Version]
    """Versions among `others` that were cleaned up, so that their changes are unknown."""


def read_history(
    location: Location,
    since: Version,
    *,
    base: Snapshot | None = None,
    known: Sequence[CommittedTransaction] = (),
    existing: Version | None = None,
    list_newest: bool = True,
) -> History | None:
    """Read the transactions committed after `since`; `None` if the table has no versions.

    `base` and `known` were loaded before. A version never changes, so they are not read again. `existing` is a version
    that is known to exist even if a listing does not show it yet. Without `list_newest` nothing is listed, and newer
    versions may exist.
    """
    versions = _list_before_commit(location, since) if list_newest or base is None else Versions((), base.scheme)
    seen = [*versions.numbers[-1:], *(committed.version for committed in known[-1:]), *([base.version] if base else [])]
    seen += [existing] if existing else []
    if not seen:
        return None
    loaded = {committed.version: committed for committed in known}
    others: list[CommittedTransaction] = []
    missing: list[Version] = []
    # A listing may be older than what is already known, or may show a version and miss the previous one, which could
    # be our own commit. So the head is never older than any version seen and never newer than the versions read here,
    # and every number up to it is requested.
    newest = max(seen)
    head = base if base and base.version == newest else None
    for version in map(Version, range(since + 1, newest + 1)):
        if version not in loaded:
            try:
                snapshot = head if version == newest and head else load_named(location, version, versions.scheme)
            except NotFound:
                if version == newest:
                    raise
                missing.append(version)
                others.append(CommittedTransaction(version, None))
                continue
            head = snapshot if version == newest else head
            loaded[version] = CommittedTransaction.of(snapshot.manifest, load_transaction(location, snapshot.manifest))
        others.append(loaded[version])
    return History(head or load_at(location, newest), others, missing)


def load_named(location: Location, version: Version, scheme: NamingScheme) -> Snapshot:
    """Load one version by the name of its manifest. Raises `NotFound`."""
    path = naming.manifest_path(version, scheme)
    try:
        manifest = read_decoded(
            location.store, path, MANIFEST_BYTES, lambda data: Manifest.decode(data, path=path, version=version)
        )
    except Corrupt as error:
        raise Corrupt(error.what, path=f"{location.uri}/{error.path}", field=error.field) from error
    except Unsupported as error:
        raise Unsupported(f"{location.uri}/{error}") from error
    version_location = location.for_manifest(manifest)
    if not manifest.has_writer:
        manifest = with_counts(version_location.store, version_location.codec, manifest)
    if manifest.has_stable_row_ids and (
        external := manifest_file.external_lineage_fields(manifest.encode(), path=manifest.path)
    ):
        try:
            manifest = with_lineage(version_location.store, manifest, external)
        except Unsupported as error:
            raise Unsupported(f"{location.uri}/{error}") from error
    return Snapshot(version_location, manifest, scheme)


def _list_newest(location: Location, *, names_max: int = version_hint.FIRST_NAMES) -> Versions:
    """Return the newest version, and perhaps others; no version if no table exists. On an ordered store, list the first
    `names_max` names, and all names only if the first ones do not determine the newest version."""
    store = location.own_store
    if not isinstance(store, SupportsOrderedListing):
        newest, listed = version_hint.find_newest(store), []
    else:
        listed = [*store.list_first(naming.VERSIONS, names_max)]
        if len(listed) < names_max:  # this is the whole directory
            versions = versions_of(location, listed)
            _uniform_names.put(location.key, True)
            return versions
        newest = version_hint.newest_of_first(listed)
    if newest is None:
        whole = location.store.list(naming.VERSIONS)
        return _newest_of_uniform_names(whole) or versions_of(location, whole)
    parsed = ((naming.parse_manifest_name(_name_of(info)), info) for info in listed)
    return Versions((newest[0],), newest[1], {each[0]: info for each, info in parsed if each})


def _newest_of_uniform_names(listed: Sequence[ObjectInfo]) -> Versions | None:
    """Return the newest version of a sorted listing of the whole directory, without parsing each name; `None` unless
    all names of versions are of the new scheme. Names of the old one sort before or after them."""
    after = bisect_left(listed, f"{naming.VERSIONS}/{_AFTER_NEW_NAMES}", key=lambda info: info.path)
    ends = [naming.parse_manifest_name(_name_of(info)) for info in (*listed[:1], *listed[after : after + 1])]
    if not ends or ends[0] is None or any(parsed and parsed[1] is NamingScheme.V1 for parsed in ends):
        return None
    return Versions((ends[0][0],), NamingScheme.V2, {ends[0][0]: listed[0]})


def _list_before_commit(location: Location, since: Version) -> Versions:
    """Return the newest version, and perhaps others, for a commit. Raise `Corrupt` if manifests of both naming schemes
    exist."""
    if not isinstance(location.own_store, SupportsOrderedListing) or _uniform_names.get(location.key):
        return _list_newest(location)
    versions = _list_newest(location, names_max=PAGE_NAMES if since < LISTED_WHOLE_MAX else version_hint.FIRST_NAMES)
    check_one_naming_scheme(location)
    return versions


def _no_table_error(location: Location) -> NotFound:
    return NotFound(f"there is no Lance table at {location.uri}; create one, or check the path")


def format_ranges(numbers: Sequence[Version]) -> str:
    """Format ascending numbers as `1-4, 7`; a long text is shortened in the middle."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "…", *texts[-3:]])


def table_id(snapshot: Snapshot) -> str | None:
    """Return the identity of the table, which distinguishes tables created one after another at the same location.

    The format defines none, so tables that this library creates store a uuid in their config. The identity of a table
    of another writer is the uuid of the transaction that created or cloned it; `None` if that is missing or damaged.
    """
    if recorded_id := snapshot.manifest.config.get(TABLE_ID):
        return recorded_id
    location, branch = snapshot.location, snapshot.manifest.branch
    try:
        if branch is not None and location.main_branch_uri(branch) is not None:
            location = location.locate_main_branch(branch)
        numbers = list_versions(location).numbers
        first = load_at(location, numbers[0] if numbers else snapshot.version)
        transaction = load_transaction(first.location, first.manifest)
    except (Corrupt, NotFound, Unsupported):
        return None
    if transaction is None or not (first.version == 1 or isinstance(transaction.operation, Clone)):
        return None
    return transaction.uuid
