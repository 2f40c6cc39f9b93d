"""How a version says which source files its rows were ingested from.

    config["lance_assets.ingested"] = "<segment>:<files> <segment>:<files> ..."      the newest first
    _lance_assets/ingested/<segment>.arrow                                           in the root of the main line

The entry is part of the version, so it lands with the rows or not at all, goes back where an older version is restored,
and is inherited by branches. A transaction that sets it names in its properties what it follows, too: it stands only on
a version that has just that. The segments themselves are written and read in `tasks/record.py`. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lance_core.errors import Corrupt, RetryableConflict
from lance_core.format import naming

INGESTED = "lance_assets.ingested"
"""The key of the entry, and of the property that says what it becomes."""
FOLLOWS = "lance_assets.ingested_follows"
"""The property that says what it is before."""
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
    """
    >>> segments_of({"lance_assets.ingested": "0123456789abcdef0123456789abcdef:7"}, path="")[0].files
    7
    """
    found = []
    for each in config.get(INGESTED, "").split():
        if (matched := _SEGMENT.fullmatch(each)) is None:
            raise Corrupt(f"{each!r:.80} is no part of a record of ingested files", path=path, field=INGESTED)
        found.append(IngestSegment(matched[1], int(matched[2])))
    return tuple(found)


def config_after(
    config: Mapping[str, str], properties: Mapping[str, str], *, ours: str, version: int
) -> dict[str, str] | None:
    """The config after a change with these properties; None where it says nothing of files."""
    after = properties.get(INGESTED)
    if after is None:
        return None
    if config.get(INGESTED, "") != properties.get(FOLLOWS, ""):
        raise RetryableConflict(
            f"files were ingested up to version {version} that this {ours} has not seen; repeat it on that version",
            ours=ours,
            theirs="ingest",
            version=version,
            rule="ingested_meanwhile",
        )
    return {**config, INGESTED: after}
