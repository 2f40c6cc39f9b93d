"""Where to look first for the newest version, without a listing that costs more with every version.

Names of versions are made so that the newest comes first: where a store lists in the order of names, a glance at the
beginning is enough. Elsewhere a note helps:

    _versions/latest_version_hint.json          {"version":7}

Written after a commit, and it may be missing, garbled, too low or too high. So it is never believed: the version it
names has to be there, and later ones are asked for until one is missing. Versions below the top may have been cleaned
up, and a hint that stayed behind could end before such a gap; it counts only if it was left soon after its version was
made, and nothing in the directory came or went since it was written. In all other cases the directory is listed.
"""

import json
from datetime import timedelta

from lance_core.errors import LanceError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.storage.store import ObjectInfo, ReportsLastChange, Store, SupportsOrderedListing

HINT = f"{naming.VERSIONS}/latest_version_hint.json"
_PROBES_MAX = 1000
_GLANCE = 20
_BYTES_MAX = 64
_IN_TIME = timedelta(seconds=30)


def find_newest(store: Store) -> tuple[Version, NamingScheme] | None:
    """None where only a listing can tell."""
    if isinstance(store, SupportsOrderedListing):
        return _first(store)
    if not isinstance(store, ReportsLastChange) or (version := read_hint(store)) is None:
        return None
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        if (made := store.head(naming.manifest_path(version, scheme))) is None:
            continue
        for _ in range(_PROBES_MAX):
            following = Version(version + 1)
            if store.head(naming.manifest_path(following, scheme)) is None:
                return (version, scheme) if _is_fresh(store.last_change(HINT), made) else None
            version = following
    return None


def _is_fresh(left: ObjectInfo | None, made: ObjectInfo) -> bool:
    """Whether the note was the last change, and left soon after its version was made. A cleanup takes no version of
    less than a minute, so there was no gap above this one then; a writer that stood still may leave its note when there
    is."""
    return left is not None and left.modified - made.modified < _IN_TIME


def _first(store: SupportsOrderedListing) -> tuple[Version, NamingScheme] | None:
    """Among the first names may be some that are no versions. Names of the old scheme are in no order of use."""
    names = [info.path.rpartition("/")[2] for info in store.first(naming.VERSIONS, _GLANCE)]
    found = [parsed for name in names if (parsed := naming.parse_manifest_name(name))]
    if not found or any(scheme is NamingScheme.V1 for _, scheme in found):
        return None
    return max(found)


def write_hint(store: Store, version: Version) -> None:
    """At best effort: the version has landed, hint or not."""
    if not isinstance(store, ReportsLastChange):
        return
    try:
        store.put_volatile(HINT, b'{"version":%d}' % version)
    except LanceError:
        return


def read_hint(store: Store) -> Version | None:
    """What the note says, true or not; None where there is none that says something."""
    try:
        hint = json.loads(store.read(HINT, 0, _BYTES_MAX))
    except (LanceError, ValueError, RecursionError):
        return None
    number = hint.get("version") if isinstance(hint, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 or naming.is_detached(Version(number)):
        return None
    return Version(number)
