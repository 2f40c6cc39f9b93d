"""Manifest store entries: compares the entries of a manifest store to the manifests that exist. Every version must be
reserved and published, and there must be no other entries.

The examination bypasses the two-phase protocol (`without_manifest_store`): listing a table through the protocol
publishes unfinished versions, and an examination must not write. Repairs change entries through the manifest store, on
condition that the entry is unchanged. Start with `check_entries`.
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

_FIXED_BY_READING = "The next reader or writer of the table completes it."


def without_manifest_store(location: Location) -> tuple[Location, TwoPhaseStore | None]:
    """Return the location with the bare store of the table, and the two-phase store around it if there is a
    manifest store."""
    two_phase = location.own_store
    if not isinstance(two_phase, TwoPhaseStore):
        return location, None
    return replace(
        location, store=two_phase.table_store, access=replace(location.access, manifest_store=None)
    ), two_phase


def check_entries(two_phase: TwoPhaseStore) -> Iterator[Finding]:
    """Check all entries of a table."""
    manifests, key = two_phase.manifest_store, two_phase.table_key
    try:
        entries = {entry.version: entry for entry in manifests.list_entries(key)}
    except Corrupt as error:
        yield _finding(
            Severity.ERROR, "entries", key, error.what, "Correct it, or remove it if it belongs to no version."
        )
        return
    paths = _list_manifests(two_phase)
    newest = max(paths, default=Version(0))
    leftovers = []
    for version, entry in entries.items():
        try:
            check_entry(entry, what=manifests.description)
        except Corrupt as error:
            yield _invalid_entry(two_phase, entry, paths.get(version), error)
            continue
        final = two_phase.table_store.head(entry.final_path)
        if final is None and version in paths:
            final = two_phase.table_store.head(paths[version])
        if final is not None:
            yield from _check_published(two_phase, entry, final.size)
        elif not entry.is_final and two_phase.table_store.head(entry.path) is not None:
            if (current := manifests.find_entry(key, version)) == entry and two_phase.table_store.head(
                entry.final_path
            ) is None:
                yield _unfinished_entry(two_phase, current)
        elif version < newest:
            leftovers.append(entry)
        else:
            yield _entry_without_file(two_phase, entry, newest)
    if leftovers:
        what = f"{_store_name(two_phase)} has entries of versions without manifests: {_version_ranges(leftovers)}"
        action = f"Remove the entries of versions {_version_ranges(leftovers)} from {manifests.description}."
        fix = Repair(RepairKind.ENTRIES, action, partial(_remove_entries, two_phase, leftovers))
        yield _finding(Severity.INFO, "entry_left", key, what, "They are harmless.", fix=fix)
    yield from _check_missing_entries(two_phase, paths, entries)


def _list_manifests(two_phase: TwoPhaseStore) -> dict[Version, str]:
    paths = {}
    for info in two_phase.table_store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            paths[parsed[0]] = info.path
    return paths


def _invalid_entry(two_phase: TwoPhaseStore, entry: Entry, path: str | None, error: Corrupt) -> Finding:
    """Report an invalid entry. If it is the newest entry, the table cannot be opened."""
    fix = None
    if path is not None and (info := two_phase.table_store.head(path)) is not None:
        corrected = Entry(entry.version, path, info.size)
        action = f"Correct the entry of version {entry.version}, which names {entry.path!r}: its manifest is at {path}."
        fix = Repair(RepairKind.ENTRIES, action, partial(_replace_entry, two_phase, entry, corrected))
    repair = "Correct the entry, or remove it if it belongs to no version."
    return _finding(Severity.ERROR, "entry_path", two_phase.table_key, error.what, repair, entry.version, fix)


def _check_published(two_phase: TwoPhaseStore, entry: Entry, size: int) -> Iterator[Finding]:
    version, key = entry.version, two_phase.table_key
    if not entry.is_final:
        if two_phase.manifest_store.find_entry(key, version) != entry:
            return  # another process has published it meanwhile
        what = f"version {version} is published, but {_store_name(two_phase)} still names its temporary file"
        fix = Repair(
            RepairKind.ENTRIES,
            f"Update the entry of version {version} to name its manifest.",
            partial(_finish_entry, two_phase, entry),
        )
        yield _finding(Severity.INFO, "entry_untidy", entry.path, what, _FIXED_BY_READING, version, fix)
    elif entry.size is not None and entry.size != size:
        what = (
            f"the manifest of version {version} has {size} bytes, but {_store_name(two_phase)} records {entry.size}: "
            "the manifest was replaced, or another one was reserved"
        )
        corrected = replace(entry, size=size)
        action = f"Record in the entry of version {version} that its manifest has {size} bytes."
        fix = Repair(RepairKind.ENTRIES, action, partial(_replace_entry, two_phase, entry, corrected))
        repair = "Find out which of the two is correct: the next version records the hash, if this library wrote it."
        yield _finding(Severity.WARNING, "entry_size", entry.path, what, repair, version, fix)


def _unfinished_entry(two_phase: TwoPhaseStore, entry: Entry) -> Finding:
    what = f"version {entry.version} is reserved for this file, which is not published yet"
    action = f"Publish {entry.path} as version {entry.version}, as the next reader would."
    fix = Repair(RepairKind.ENTRIES, action, partial(_finish_entry, two_phase, entry))
    return _finding(Severity.WARNING, "entry_unfinished", entry.path, what, _FIXED_BY_READING, entry.version, fix)


def _entry_without_file(two_phase: TwoPhaseStore, entry: Entry, newest: Version) -> Finding:
    version, path = entry.version, entry.path
    if entry.is_final:
        what = f"version {version} was committed, but its manifest does not exist; the newest existing one is {newest}"
        repair = "Restore it from a copy. If the table was reset to an earlier state, the next commit takes its number."
        return _finding(Severity.ERROR, "manifest_gone", path, what, repair, version)
    what = f"version {version} is reserved for this file, which does not exist; its commit was never acknowledged"
    fix = Repair(
        RepairKind.ENTRIES, f"Remove the entry of version {version}.", partial(_remove_entry, two_phase, entry)
    )
    return _finding(Severity.WARNING, "entry_of_nothing", path, what, "The next commit takes its number.", version, fix)


def _check_missing_entries(
    two_phase: TwoPhaseStore, paths: Mapping[Version, str], entries: Mapping[Version, Entry]
) -> Iterator[Finding]:
    last, key = max(entries, default=Version(0)), two_phase.table_key
    older = [version for version in sorted(paths.keys() - entries.keys()) if version < last]
    if older:
        what = (
            f"{_store_name(two_phase)} has no entry of versions {format_ranges(older)}, which are found by their names"
        )
        yield _finding(
            Severity.INFO,
            "no_entry",
            naming.VERSIONS,
            what,
            "They are older than the manifest store, or lost their entries.",
        )
    for version in sorted(version for version in paths if version > last):
        path = paths[version]
        if (
            two_phase.manifest_store.find_entry(key, version) is not None
            or (info := two_phase.table_store.head(path)) is None
        ):
            continue
        what = (
            f"version {version} was committed without {_store_name(two_phase)}: a writer that reads only the manifest "
            "store does not see it, and may overwrite it"
        )
        entry = Entry(version, path, info.size)
        action = f"Add an entry of version {version} to {two_phase.manifest_store.description}."
        fix = Repair(RepairKind.ENTRIES, action, partial(_add_entry, two_phase, entry))
        repair = "Make sure that all writers open the table with its manifest store."
        yield _finding(Severity.WARNING, "no_entry", path, what, repair, version, fix)


def _finish_entry(two_phase: TwoPhaseStore, entry: Entry) -> str:
    final_path = two_phase.finish_version(entry.version)
    return (
        f"version {entry.version} does not exist any more"
        if final_path is None
        else f"version {entry.version} is at {final_path}"
    )


def _remove_entries(two_phase: TwoPhaseStore, entries: Sequence[Entry]) -> str:
    return "; ".join(_remove_entry(two_phase, entry) for entry in entries)


def _remove_entry(two_phase: TwoPhaseStore, entry: Entry) -> str:
    if any(two_phase.table_store.head(path) is not None for path in {entry.path, entry.final_path}):
        return f"a file of version {entry.version} exists now, and its entry was not removed"
    two_phase.manifest_store.remove_entry(two_phase.table_key, entry)
    if two_phase.manifest_store.find_entry(two_phase.table_key, entry.version) is None:
        return f"the entry of version {entry.version} was removed"
    return f"the entry of version {entry.version} has changed and was not removed"


def _replace_entry(two_phase: TwoPhaseStore, entry: Entry, new_entry: Entry) -> str:
    was_replaced = two_phase.manifest_store.move_entry(two_phase.table_key, entry, new_entry)
    return f"the entry of version {entry.version} " + (
        "was corrected" if was_replaced else "has changed and was not corrected"
    )


def _add_entry(two_phase: TwoPhaseStore, entry: Entry) -> str:
    put = two_phase.manifest_store.reserve(two_phase.table_key, entry)
    if put is Put.UNKNOWN:
        return f"it is unknown whether an entry of version {entry.version} was added; examine the table again"
    return (
        f"an entry of version {entry.version} was added"
        if put is Put.CREATED
        else f"version {entry.version} has an entry now"
    )


def _store_name(two_phase: TwoPhaseStore) -> str:
    return two_phase.manifest_store.description


def _version_ranges(entries: Sequence[Entry]) -> str:
    return format_ranges([entry.version for entry in entries])


def _finding(
    severity: Severity, rule: str, path: str, what: str, repair: str, version: Version | None = None,
    fix: Repair | None = None,
) -> Finding:  # fmt: skip
    return Finding(severity, rule, path, what, repair, version, fix)
