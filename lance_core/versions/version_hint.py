"""Version hint: finds the newest version without a listing, whose cost grows with every version.

Version names sort with the newest first, so on a store that lists in name order the first few names are enough. Other
stores have a hint file:

    _versions/latest_version_hint.json          {"version":7}

The hint is written after a commit, and may be missing, garbled, too low or too high, so it is never trusted: the
version that it names must exist, and later versions are probed until one is missing. Versions below the newest may
have been cleaned up, and probing from a stale hint could end before such a gap. The hint therefore counts only if it
was written soon after its version was committed, and if nothing in the directory changed since. In all other cases the
directory is listed.
"""

import json
from collections.abc import Iterable
from datetime import timedelta

from lance_core.errors import LanceError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.storage.store import ObjectInfo, ReportsLastChange, Store, SupportsOrderedListing

HINT = f"{naming.VERSIONS}/latest_version_hint.json"
_PROBES_MAX = 1000
FIRST_NAMES = 20
"""Number of names that a search for the newest version lists on an ordered store."""
_BYTES_MAX = 64
HINT_DELAY_MAX = timedelta(seconds=30)
"""Maximum time after a version at which its hint is still valid."""


def find_newest(store: Store) -> tuple[Version, NamingScheme] | None:
    """Return the newest version; `None` if only a full listing can find it."""
    if isinstance(store, SupportsOrderedListing):
        return _newest_of_first_names(store)
    if not isinstance(store, ReportsLastChange) or (version := read_hint(store)) is None:
        return None
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        if (manifest_info := store.head(naming.manifest_path(version, scheme))) is None:
            continue
        for _ in range(_PROBES_MAX):
            next_version = Version(version + 1)
            if store.head(naming.manifest_path(next_version, scheme)) is None:
                return (version, scheme) if _is_fresh(store.head_if_directory_unchanged(HINT), manifest_info) else None
            version = next_version
    return None


def _is_fresh(hint_info: ObjectInfo | None, manifest_info: ObjectInfo) -> bool:
    """Return whether the hint was the last change of the directory, and was written soon after its version was
    committed.

    A cleanup removes no version that is less than a minute old, so there was no gap above this version at that time. A
    suspended writer may write its hint later, when there is such a gap.
    """
    return hint_info is not None and hint_info.modified - manifest_info.modified < HINT_DELAY_MAX


def _newest_of_first_names(store: SupportsOrderedListing) -> tuple[Version, NamingScheme] | None:
    return newest_of_first(store.list_first(naming.VERSIONS, FIRST_NAMES))


def newest_of_first(listed: Iterable[ObjectInfo]) -> tuple[Version, NamingScheme] | None:
    """Return the newest version among the first names of a sorted listing, which may include other files. Return `None`
    if names of the old scheme are among them, since these do not sort by version."""
    names = [info.path.rpartition("/")[2] for info in listed]
    versions = [parsed for name in names if (parsed := naming.parse_manifest_name(name))]
    if not versions or any(scheme is NamingScheme.V1 for _, scheme in versions):
        return None
    return max(versions)


def write_hint(store: Store, version: Version) -> None:
    """Write the hint, on a best-effort basis: the version is committed with or without it."""
    if not isinstance(store, ReportsLastChange):
        return
    try:
        store.put_volatile(HINT, b'{"version":%d}' % version)
    except LanceError:
        return


def read_hint(store: Store) -> Version | None:
    """Return the version in the hint, right or wrong; `None` if there is no valid hint."""
    try:
        hint = json.loads(store.read(HINT, 0, _BYTES_MAX))
    except (LanceError, ValueError, RecursionError):
        return None
    number = hint.get("version") if isinstance(hint, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 or naming.is_detached(Version(number)):
        return None
    return Version(number)
