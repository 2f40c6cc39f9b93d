"""What a manifest store knows of a table, beside what is there: every version reserved and in place, and no more.

An examination reads past the protocol (`without_manifest_store`): whoever lists a table through it finishes what is unfinished, and to
look is not to write. What is done about an entry is done through it, under the condition that the entry is as it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lance_core.errors import Corrupt
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.storage.manifest_stores.manifest_store import Entry, check_entry
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.store import Put
from lance_core.versions.location import Location
from lance_core.versions.snapshot import format_ranges

_FIXED_BY_READING = "Whoever reads or writes the table next finishes it."


def without_manifest_store(location: Location) -> tuple[Location, TwoPhaseStore | None]:
    """The files of a table as they are, and the protocol around its versions where it has one."""
    published = location.own_store
    if not isinstance(published, TwoPhaseStore):
        return location, None
    return replace(
        location, store=published.table_store, access=replace(location.access, manifest_store=None)
    ), published


def check_entries(published: TwoPhaseStore) -> Iterator[Finding]:
    manifests, key = published.manifest_store, published.table_key
    try:
        entries = {entry.version: entry for entry in manifests.list_entries(key)}
    except Corrupt as error:
        yield _finding(Severity.ERROR, "entries", key, error.what, "Correct it, or remove it if it is of no version.")
        return
    paths = _list_manifests(published)
    newest = max(paths, default=Version(0))
    leftovers = []
    for version, entry in entries.items():
        try:
            check_entry(entry, what=manifests.description)
        except Corrupt as error:
            yield _invalid_entry(published, entry, paths.get(version), error)
            continue
        final = published.table_store.head(entry.final_path)
        if final is None and version in paths:
            final = published.table_store.head(paths[version])
        if final is not None:
            yield from _check_published(published, entry, final.size)
        elif not entry.is_final and published.table_store.head(entry.path) is not None:
            if (again := manifests.find_entry(key, version)) == entry and published.table_store.head(
                entry.final_path
            ) is None:
                yield _unfinished_entry(published, again)
        elif version < newest:
            leftovers.append(entry)
        else:
            yield _entry_without_file(published, entry, newest)
    if leftovers:
        what = (
            f"{_store_name(published)} has entries of versions whose manifests are gone: {_version_ranges(leftovers)}"
        )
        does = f"Remove the entries of versions {_version_ranges(leftovers)} from {manifests.description}."
        mend = Repair(RepairKind.ENTRIES, does, partial(_remove_entries, published, leftovers))
        yield _finding(Severity.INFO, "entry_left", key, what, "Nobody is harmed by them.", mend=mend)
    yield from _check_missing_entries(published, paths, entries)


def _list_manifests(published: TwoPhaseStore) -> dict[Version, str]:
    found = {}
    for info in published.table_store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            found[parsed[0]] = info.path
    return found


def _invalid_entry(published: TwoPhaseStore, entry: Entry, path: str | None, error: Corrupt) -> Finding:
    """Nobody opens a table whose newest entry is such a one."""
    mend = None
    if path is not None and (info := published.table_store.head(path)) is not None:
        right = Entry(entry.version, path, info.size)
        does = f"Correct the entry of version {entry.version}, which says {entry.path!r}: its manifest is at {path}."
        mend = Repair(RepairKind.ENTRIES, does, partial(_replace_entry, published, entry, right))
    repair = "Correct the entry, or remove it if it is of no version."
    return _finding(Severity.ERROR, "entry_path", published.table_key, error.what, repair, entry.version, mend)


def _check_published(published: TwoPhaseStore, entry: Entry, size: int) -> Iterator[Finding]:
    version, key = entry.version, published.table_key
    if not entry.is_final:
        if published.manifest_store.find_entry(key, version) != entry:
            return  # somebody was about to
        what = f"version {version} is in place, and {_store_name(published)} still names the file it was made from"
        mend = Repair(
            RepairKind.ENTRIES,
            f"Let the entry of version {version} name its manifest.",
            partial(_finish_entry, published, entry),
        )
        yield _finding(Severity.INFO, "entry_untidy", entry.path, what, _FIXED_BY_READING, version, mend)
    elif entry.size is not None and entry.size != size:
        what = (
            f"the manifest of version {version} has {size} bytes, and {_store_name(published)} has noted {entry.size}: it "
            "was replaced, or another one was reserved"
        )
        right = replace(entry, size=size)
        does = f"Note in the entry of version {version} that its manifest has {size} bytes."
        mend = Repair(RepairKind.ENTRIES, does, partial(_replace_entry, published, entry, right))
        repair = "Find out which of the two is right: the version after it tells by its hash, if it is one of ours."
        yield _finding(Severity.WARNING, "entry_size", entry.path, what, repair, version, mend)


def _unfinished_entry(published: TwoPhaseStore, entry: Entry) -> Finding:
    what = f"version {entry.version} is reserved for this file, which is not in its place yet"
    does = f"Put {entry.path} into its place as version {entry.version}, as the next reader would."
    mend = Repair(RepairKind.ENTRIES, does, partial(_finish_entry, published, entry))
    return _finding(Severity.WARNING, "entry_unfinished", entry.path, what, _FIXED_BY_READING, entry.version, mend)


def _entry_without_file(published: TwoPhaseStore, entry: Entry, newest: Version) -> Finding:
    version, path = entry.version, entry.path
    if entry.is_final:
        what = f"version {version} was committed, and its manifest is gone; the newest that is there is {newest}"
        repair = (
            "Put it back from a copy. If the table was put back to an earlier state, the next commit takes its number."
        )
        return _finding(Severity.ERROR, "manifest_gone", path, what, repair, version)
    what = f"version {version} is reserved for this file, which is gone; nobody was told of that version"
    mend = Repair(
        RepairKind.ENTRIES, f"Remove the entry of version {version}.", partial(_remove_entry, published, entry)
    )
    return _finding(Severity.WARNING, "entry_of_nothing", path, what, "A commit takes its number over.", version, mend)


def _check_missing_entries(
    published: TwoPhaseStore, paths: Mapping[Version, str], entries: Mapping[Version, Entry]
) -> Iterator[Finding]:
    last, key = max(entries, default=Version(0)), published.table_key
    older = [version for version in sorted(paths.keys() - entries.keys()) if version < last]
    if older:
        what = (
            f"{_store_name(published)} has no entry of versions {format_ranges(older)}, which are found by their names"
        )
        yield _finding(Severity.INFO, "no_entry", naming.VERSIONS, what, "They were there before it, or lost theirs.")
    for version in sorted(version for version in paths if version > last):
        path = paths[version]
        if (
            published.manifest_store.find_entry(key, version) is not None
            or (info := published.table_store.head(path)) is None
        ):
            continue
        what = (
            f"version {version} was committed past {_store_name(published)}: who asks there alone does not see it, and may "
            "overwrite it"
        )
        entry = Entry(version, path, info.size)
        does = f"Enter version {version} into {published.manifest_store.description}."
        mend = Repair(RepairKind.ENTRIES, does, partial(_add_entry, published, entry))
        repair = "See to it that all writers open the table with its manifest store."
        yield _finding(Severity.WARNING, "no_entry", path, what, repair, version, mend)


def _finish_entry(published: TwoPhaseStore, entry: Entry) -> str:
    there = published.finish_version(entry.version)
    return f"version {entry.version} is nowhere any more" if there is None else f"version {entry.version} is at {there}"


def _remove_entries(published: TwoPhaseStore, entries: Sequence[Entry]) -> str:
    return "; ".join(_remove_entry(published, entry) for entry in entries)


def _remove_entry(published: TwoPhaseStore, entry: Entry) -> str:
    if any(published.table_store.head(path) is not None for path in {entry.path, entry.final_path}):
        return f"there is a file of version {entry.version} now, and its entry stays"
    published.manifest_store.remove_entry(published.table_key, entry)
    if published.manifest_store.find_entry(published.table_key, entry.version) is None:
        return f"the entry of version {entry.version} is removed"
    return f"the entry of version {entry.version} is another one now, and stays"


def _replace_entry(published: TwoPhaseStore, entry: Entry, to: Entry) -> str:
    done = published.manifest_store.move_entry(published.table_key, entry, to)
    return f"the entry of version {entry.version} is " + ("correct now" if done else "another one now, and stays")


def _add_entry(published: TwoPhaseStore, entry: Entry) -> str:
    put = published.manifest_store.reserve(published.table_key, entry)
    if put is Put.UNKNOWN:
        return f"whether version {entry.version} is entered is not known; look again"
    return f"version {entry.version} is entered" if put is Put.CREATED else f"version {entry.version} has an entry now"


def _store_name(published: TwoPhaseStore) -> str:
    return published.manifest_store.description


def _version_ranges(entries: Sequence[Entry]) -> str:
    return format_ranges([entry.version for entry in entries])


def _finding(
    severity: Severity, rule: str, path: str, what: str, repair: str, version: Version | None = None,
    mend: Repair | None = None,
) -> Finding:  # fmt: skip
    return Finding(severity, rule, path, what, repair, version, mend)
