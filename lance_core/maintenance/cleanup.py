"""Removing versions that nobody needs any more, and files that no version names.

    choose the versions -> what stays names, what goes names -> files -> (unless dry) manifests first, then files

Manifests go first: a cleanup that dies leaves files without a version, never a version without its files. References
are looked at again after that and before a file goes. All ages are by the store's clock, so that nobody's own clock can
make a file look old. A file that no version ever named may belong to a write that is under way: it stays until it is
older than the grace period, which no argument makes shorter than an hour. Start with `clean`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lance_core import given
from lance_core.errors import InvalidInput, StorageError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.inventory import Line, key_of, line_of, listed, named_by, named_by_other_lines
from lance_core.location import Location, check_publishing
from lance_core.maintenance.protection import of_live_intents, outlived_intents, reasons
from lance_core.ports import Ports
from lance_core.snapshot import Snapshot, list_versions, load_at
from lance_core.storage.store import ObjectInfo, Put, Store
from lance_core.storage.trees import prune

GRACE = timedelta(days=7)
GRACE_FLOOR = timedelta(hours=1)
_AT_ONCE = 100
_ORPHANS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Retention:
    """A version goes when it is older than `older_than` and not among the newest `keep`."""

    older_than: timedelta
    keep: int
    orphan_grace: timedelta = GRACE

    def __post_init__(self) -> None:
        stays = "the newest version always stays, so it is at least 1"
        given.whole_number(self.keep, "keep", at_least=1, too_small=stays)
        if given.duration(self.older_than, "older_than") < timedelta(0):
            raise InvalidInput(f"older_than={self.older_than}: no version is younger than new")
        if given.duration(self.orphan_grace, "orphan_grace") < GRACE_FLOOR:
            raise InvalidInput(
                f"orphan_grace={self.orphan_grace}: a file that no version names may belong to a write that is under "
                f"way, and stays for {GRACE_FLOOR} at least"
            )


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What was removed; what would be, where `dry_run`. Paths are from the table's root."""

    dry_run: bool
    versions: tuple[Version, ...]
    files: tuple[str, ...]
    """Manifests, and everything that only versions named which went."""
    orphans: tuple[str, ...]
    """Files that no version names, older than the grace period."""
    intents: tuple[str, ...]
    """Records of writes that landed so long ago that nobody repeats them."""
    bytes: int
    kept: Mapping[Version, tuple[str, ...]]
    """Versions that are old enough to go, and the tags, branches and clones that keep them."""
    seems_wrong: bool = False
    """More than half of the files on the store are orphans."""


@dataclass(frozen=True, slots=True)
class _Choice:
    versions: tuple[Version, ...]
    kept: Mapping[Version, tuple[str, ...]]


def choose(
    modified: Mapping[Version, datetime],
    named: Mapping[Version, Sequence[str]],
    *,
    loaded: Version,
    retention: Retention,
    now: datetime,
) -> _Choice:
    """Pure. `modified` has every version there is; those from `loaded` on always stay."""
    numbers = sorted(modified)
    newest = set(numbers[-retention.keep :])
    old = [
        number
        for number in numbers
        if number < loaded and number not in newest and now - modified[number] >= retention.older_than
    ]
    return _Choice(
        versions=tuple(number for number in old if number not in named),
        kept={number: tuple(named[number]) for number in old if number in named},
    )


def clean(base: Snapshot, retention: Retention, *, dry_run: bool, force: bool, ports: Ports) -> CleanupReport:
    """`base` is the version the caller has seen: it and whatever is newer stays."""
    dry_run, force = given.flag(dry_run, "dry_run"), given.flag(force, "force")
    check_publishing(base.location, base.manifest)
    line = line_of(base)
    location = line.location
    now = _store_time(location.store, ports)
    manifests = _manifests(location)
    versions = {version: manifest[1] for version, manifest in manifests.items()}
    choice = choose(versions, reasons(line), loaded=base.version, retention=retention, now=now)
    going = set(choice.versions)
    staying = _named(location, (version for version in versions if version not in going)) | named_by_other_lines(line)
    leaving = _named(location, choice.versions, own_only=True) - staying
    alive = of_live_intents(location.store, now=now, patience=retention.orphan_grace)

    found = _sort_out(location, staying | alive, leaving, older_than=now - retention.orphan_grace)
    manifest_paths = tuple(manifests[version][0] for version in choice.versions)
    sizes = {info.path: info.size for info in (*found.leaving, *found.orphans)}
    sizes |= {info.path: info.size for info in map(location.store.head, manifest_paths) if info is not None}
    report = CleanupReport(
        dry_run=dry_run,
        versions=choice.versions,
        files=(*manifest_paths, *(info.path for info in found.leaving)),
        orphans=tuple(info.path for info in found.orphans),
        intents=tuple(outlived_intents(location.store, now=now)),
        bytes=sum(sizes.values()),
        kept=choice.kept,
        seems_wrong=len(found.orphans) > _ORPHANS_SHARE * found.known,
    )
    if dry_run:
        return report
    if report.seems_wrong and not force:
        raise InvalidInput(
            f"{location.uri}: {len(found.orphans)} of {found.known} files are named by no version, which looks more "
            "like a mistake than like leftovers. Nothing was removed. Look at what a dry run lists; if it is right, "
            "force it"
        )
    put_back = _remove_manifests(line, {version: manifests[version][0] for version in choice.versions})
    # Whatever was committed or named meanwhile, a restored version above all, keeps what it names.
    newer = [version for version in _manifests(location) if version not in versions]
    still = _named(location, [*newer, *put_back]) | named_by_other_lines(line)
    spared = {info.path for info in (*found.leaving, *found.orphans) if key_of(info.path) in still}
    spared |= {manifests[version][0] for version in put_back}
    for path in (*_in_order(report.files), *report.orphans, *report.intents):
        if path not in spared:
            location.store.delete(path)
            if path.startswith(naming.INDICES) or path.endswith(".blob"):
                prune(location.store, path.rpartition("/")[0])
    return replace(
        report,
        versions=tuple(version for version in choice.versions if version not in put_back),
        files=tuple(path for path in report.files if path not in spared),
        orphans=tuple(path for path in report.orphans if path not in spared),
        bytes=sum(size for path, size in sizes.items() if path not in spared),
        kept={**choice.kept, **put_back},
    )


@dataclass(frozen=True, slots=True)
class _Found:
    leaving: tuple[ObjectInfo, ...]
    orphans: tuple[ObjectInfo, ...]
    known: int
    """Files of known kinds, those that stay included."""


def _sort_out(location: Location, staying: set[str], leaving: set[str], *, older_than: datetime) -> _Found:
    gone, orphans = [], []
    known = 0
    for key, info in listed(location):
        known += 1
        if key in staying:
            continue
        if key in leaving:
            gone.append(info)
        elif info.modified < older_than:
            orphans.append(info)
    return _Found(tuple(gone), tuple(orphans), known)


def _store_time(store: Store, ports: Ports) -> datetime:
    """The store's own idea of now: when it last saw a file that was written a moment ago."""
    probe = f"{naming.OWN}/clock/{ports.new_uuid().hex}"
    store.put(probe, b"")
    try:
        found = store.head(probe)
    finally:
        store.delete(probe)
    if found is None:
        raise StorageError(f"{store.description} does not show a file that was just written; nothing was removed")
    return found.modified


def _manifests(location: Location) -> dict[Version, tuple[str, datetime]]:
    """Path and age of each version; both naming schemes in one table are refused."""
    list_versions(location)
    found = {}
    for info in location.store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            found[parsed[0]] = (info.path, info.modified)
    return dict(sorted(found.items()))


def _named(location: Location, versions: Iterable[Version], *, own_only: bool = False) -> set[str]:
    """A manifest that cannot be read ends the cleanup: what it names, nobody knows."""
    found: set[str] = set()
    for version in versions:
        named = named_by(load_at(location, version).manifest)
        found |= named.own
        if not own_only:
            found |= named.elsewhere
    return found


def _remove_manifests(line: Line, paths: Mapping[Version, str]) -> dict[Version, tuple[str, ...]]:
    """Oldest first. One that was named while it went is put back, byte for byte."""
    store = line.location.store
    put_back: dict[Version, tuple[str, ...]] = {}
    left = sorted(paths)
    while left:
        now, left = left[:_AT_ONCE], left[_AT_ONCE:]
        named = reasons(line)
        removed = {}
        for version in now:
            if version in named:
                put_back[version] = tuple(named[version])
                continue
            removed[version] = store.read(paths[version])
            store.delete(paths[version])
        named = reasons(line)
        for version in removed.keys() & named.keys():
            if store.create(paths[version], removed[version]) is Put.UNKNOWN:
                raise StorageError(
                    f"{line.location.uri}: version {version} was named ({', '.join(named[version])}) while it was "
                    "being removed, and whether it could be put back is not known. No data was removed: put back "
                    f"{paths[version]} from a backup, or remove the name"
                )
            put_back[version] = tuple(named[version])
    return put_back


def _in_order(files: Iterable[str]) -> list[str]:
    """What only helps to read goes before what is read; manifests are gone by then."""
    order = (naming.VERSIONS, naming.DELETIONS, naming.INDICES, naming.DATA)
    return sorted(files, key=lambda path: next((at for at, top in enumerate(order) if path.startswith(top)), 9))
