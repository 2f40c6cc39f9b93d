"""Ingest records: the config entry that names the source files whose rows a version contains.

    config["lance_assets.ingested"] = "<segment>:<files> <segment>:<files> ..."      newest first
    _lance_assets/ingested/<segment>.arrow                                           below the root of the main branch

The entry is part of the version: it is committed atomically with the rows, reverts when an older version is restored,
and is inherited by branches. A transaction that sets the entry also names the previous entry in its properties, and
is valid only on a version that has exactly that entry. `tasks/ingest/ingest_log.py` reads and writes the segments;
this module does no I/O.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lance_core.errors import Corrupt, RetryableConflict
from lance_core.format import naming

INGESTED = "lance_assets.ingested"
"""The config key of the entry, and the transaction property that holds its new value."""
FOLLOWS = "lance_assets.ingested_follows"
"""The transaction property that holds the previous value of the entry."""
DIRECTORY = f"{naming.PROJECT_DIRECTORY}/ingested"
_SEGMENT = re.compile(r"([0-9a-f]{32}):([1-9]\d{0,11})")


@dataclass(frozen=True, slots=True)
class IngestSegment:
    name: str
    files: int

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.name}.arrow"


def encode_segments(segments: Iterable[IngestSegment]) -> str:
    return " ".join(f"{segment.name}:{segment.files}" for segment in segments)


def segments_of(config: Mapping[str, str], *, path: str) -> tuple[IngestSegment, ...]:
    """Return the segments of a table config.

    >>> segments_of({"lance_assets.ingested": "0123456789abcdef0123456789abcdef:7"}, path="")[0].files
    7
    """
    segments = []
    for entry in config.get(INGESTED, "").split():
        if (matched := _SEGMENT.fullmatch(entry)) is None:
            raise Corrupt(f"{entry!r:.80} is not a segment of an ingest record", path=path, field=INGESTED)
        segments.append(IngestSegment(matched[1], int(matched[2])))
    return tuple(segments)


def config_after(
    config: Mapping[str, str], properties: Mapping[str, str], *, ours: str, version: int
) -> dict[str, str] | None:
    """Return the config after a change with these properties, or `None` if the change ingests no files."""
    after = properties.get(INGESTED)
    if after is None:
        return None
    if config.get(INGESTED, "") != properties.get(FOLLOWS, ""):
        raise RetryableConflict(
            f"other files were ingested up to version {version}, after this {ours} was planned; repeat the operation "
            "on that version",
            ours=ours,
            theirs="ingest",
            version=version,
            rule="ingested_meanwhile",
        )
    return {**config, INGESTED: after}
