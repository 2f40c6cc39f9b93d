"""Version as of a time: finds the newest version that was committed at or before a timestamp.

The timestamps in the manifests decide, and they come from the clocks of the committers, which may run backwards. So no
order of them is assumed: of two versions that are old enough, the one with the higher number is the newer one. The
newest versions are read until one is old enough, many at the same time.

If there are many, the listing narrows the search. It has the time at which the store created each manifest, and a
version that was created more than `CLOCK_ERROR_MAX` after the timestamp is not read, unless a sample of the manifests
shows that the times of the listing mean something else, as in a copied table. Start with `load_as_of`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from lance_core import validation
from lance_core.errors import NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ObjectInfo, load_details
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest, load_named, versions_of

CLOCK_ERROR_MAX = timedelta(days=1)
"""Error of a committer's clock, such as a wrong time zone, with which the listing still narrows the search."""
_READ_ALL_MAX = 128
"""Number of versions up to which all of them are read."""
_SAMPLE = 64
_FIRST_GROUP = 8


@dataclass(frozen=True, slots=True)
class _TimedVersion:
    version: Version
    listed: ObjectInfo


def load_as_of(location: Location, timestamp: datetime) -> Snapshot:
    """Load the newest version whose timestamp is not later. Raises `NotFound`."""
    timestamp = validation.check_timestamp(timestamp, "timestamp")
    listed = location.store.list(naming.VERSIONS)
    scheme = versions_of(location, listed).scheme
    if len(listed) > _READ_ALL_MAX:
        listed = [*load_details(listed)]
    parsed = ((naming.parse_manifest_name(info.path.rpartition("/")[2]), info) for info in listed)
    newest_first = sorted(
        (_TimedVersion(each[0], info) for each, info in parsed if each), key=lambda each: -each.version
    )
    if not newest_first:
        return load_latest(location)  # the listing may lack a new table; otherwise this raises
    newest = _load(location, scheme, newest_first[0])
    if newest is not None and newest.manifest.timestamp <= timestamp:
        return newest
    older: Sequence[_TimedVersion] = newest_first[1:]
    if len(older) > _READ_ALL_MAX:
        older = _narrow(location, older, timestamp, scheme)
    for group in _groups(older):
        for snapshot in [*map_requests(location.store, partial(_load, location, scheme), group, size_of=_size_of)]:
            if snapshot is not None and snapshot.manifest.timestamp <= timestamp:
                return snapshot
    oldest = newest_first[-1]
    first = _load(location, scheme, oldest)
    committed = f", was committed at {first.manifest.timestamp.isoformat()}" if first else " is being removed"
    raise NotFound(
        f"{location.uri} has no version of {timestamp.astimezone(UTC).isoformat()} or earlier: its oldest version, "
        f"{oldest.version}{committed}"
    )


def _narrow(
    location: Location, candidates: Sequence[_TimedVersion], timestamp: datetime, scheme: NamingScheme
) -> Sequence[_TimedVersion]:
    """Return the candidates that may be old enough by the times of the listing; all of them if these times are not
    those of the commits."""
    excluded = [each for each in candidates if each.listed.modified - timestamp > CLOCK_ERROR_MAX]
    if not excluded:
        return candidates
    sample = excluded[:: max(1, len(excluded) // _SAMPLE)]
    loaded = map_requests(location.store, partial(_load, location, scheme), sample)
    for each, snapshot in zip(sample, loaded, strict=True):
        if snapshot is not None and each.listed.modified - snapshot.manifest.timestamp > CLOCK_ERROR_MAX:
            return candidates
    return [each for each in candidates if each.listed.modified - timestamp <= CLOCK_ERROR_MAX]


def _groups(candidates: Sequence[_TimedVersion]) -> Iterator[Sequence[_TimedVersion]]:
    """Yield groups of growing size, so that few versions are read in vain."""
    start, count = 0, _FIRST_GROUP
    while start < len(candidates):
        yield candidates[start : start + count]
        start, count = start + count, 2 * count


def _size_of(candidate: _TimedVersion) -> int:
    return candidate.listed.size


def _load(location: Location, scheme: NamingScheme, candidate: _TimedVersion) -> Snapshot | None:
    """Load a version; `None` if a cleanup removed it since the listing."""
    try:
        return load_named(location, candidate.version, scheme)
    except NotFound:
        return None
