"""Stream offsets: the positions of a stream in a table, as values that a checkpoint stores as JSON.

    {"lance_stream": 1, "begun": false}                                         before the first batch
    {..., "begun": true, "table": "<id>", "branch": "main", "begins": 5, "whole": true, "version": 7, "row": 1000}

The second offset means that the first 1000 rows of those that version 7 added have been sent. Every offset keeps the
start of its stream: Spark repeats the first batch with its end offset alone, and the repeated batch must have the same
start. This module does no I/O. Start with `Offset`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from lance_core.errors import InvalidInput
from lance_core.format.refs import MAIN

_FORM, _VERSION = "lance_stream", 1
NOT_STARTED: Mapping[str, object] = {_FORM: _VERSION, "begun": False}


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Start of a stream without a checkpoint. By default it sends all rows of the newest version first."""

    version: int | None = None
    """Start with the rows that this version added."""
    latest: bool = False
    """Start with the version after the newest one."""
    timestamp: datetime | None = None
    """Start with the versions that were committed after this time."""

    def __post_init__(self) -> None:
        if (self.version is not None) + self.latest + (self.timestamp is not None) > 1:
            raise InvalidInput("a stream starts at a version, with the latest, or after a time; give one of them")


@dataclass(frozen=True, slots=True)
class Offset:
    """The next row to send: row `row` of those that `version` added."""

    table: str | None
    """Id of the table, if it has one."""
    branch: str | None
    """Branch that the stream reads; `None` is the main branch."""
    begins: int
    """Version at which the stream started."""
    whole: bool
    """True if the stream started with all rows of version `begins`, and not only with those that it added."""
    version: int
    row: int = 0

    @property
    def is_initial_snapshot(self) -> bool:
        """Return whether all rows of `version` are sent, and not only those that it added."""
        return self.whole and self.version == self.begins

    @property
    def start(self) -> "Offset":
        """Offset at which the stream started."""
        return replace(self, version=self.begins, row=0)

    def after_version(self, version: int) -> "Offset":
        """Return the offset after the last row of this version."""
        return replace(self, version=version + 1, row=0)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object. Its keys have a fixed order, since Spark compares offsets as text."""
        return {
            _FORM: _VERSION,
            "begun": True,
            "table": self.table or "",
            "branch": self.branch or MAIN,
            "begins": self.begins,
            "whole": self.whole,
            "version": self.version,
            "row": self.row,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Offset | None":
        """Return the offset in a checkpoint; `None` before the first batch."""
        if data.get(_FORM) != _VERSION:
            raise InvalidInput(
                f"the checkpoint holds an offset of another format: {dict(data)!r:.200}. Give the query a "
                "checkpointLocation of its own"
            )
        if data.get("begun") is False:
            return None
        table, branch, whole = (data.get(name) for name in ("table", "branch", "whole"))
        begins, version, row = (data.get(name) for name in ("begins", "version", "row"))
        if not (
            isinstance(table, str)
            and isinstance(branch, str)
            and isinstance(whole, bool)
            and (type(begins) is int and type(version) is int and type(row) is int)
            and 1 <= begins <= version
            and row >= 0
        ):
            raise InvalidInput(
                f"the checkpoint holds a damaged offset: {dict(data)!r:.200}. Give the query a new checkpointLocation"
            )
        return cls(table or None, None if branch == MAIN else branch, begins, whole, version, row)
