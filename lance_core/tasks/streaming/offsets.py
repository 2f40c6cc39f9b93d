"""How far a stream has read a table: values that a checkpoint keeps as JSON.

    {"lance_stream": 1, "begun": false}                                         before the first batch
    {..., "begun": true, "table": "<id>", "branch": "main", "begins": 5, "whole": true, "version": 7, "row": 1000}

All rows before row 1000 of those that version 7 brought have been sent. What a stream began with stays in every offset:
whoever repeats its first batch is told only where that ended, and must not decide anew where it began. Pure. Start with
`Offset`.
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
    """Where a stream begins that has no checkpoint. Where nothing is said: with all that the newest version holds."""

    version: int | None = None
    """With what this version added."""
    latest: bool = False
    """With what is committed from now on."""
    timestamp: datetime | None = None
    """With what was committed after that time."""

    def __post_init__(self) -> None:
        if (self.version is not None) + self.latest + (self.timestamp is not None) > 1:
            raise InvalidInput("a stream begins at a version, with the latest, or after a time; give one of them")


@dataclass(frozen=True, slots=True)
class Offset:
    """The next row to be sent: row `row` of those that `version` brought."""

    table: str | None
    branch: str | None
    begins: int
    whole: bool
    """Whether the stream began with all rows that version `begins` held, and not only with those it added."""
    version: int
    row: int = 0

    @property
    def is_initial_snapshot(self) -> bool:
        """Whether `version` is sent as it is, and not what it added."""
        return self.whole and self.version == self.begins

    @property
    def start(self) -> "Offset":
        return replace(self, version=self.begins, row=0)

    def after_version(self, version: int) -> "Offset":
        """All of this version has been sent."""
        return replace(self, version=version + 1, row=0)

    def to_json(self) -> dict[str, object]:
        """Always in the same order: two offsets are the same to Spark if their texts are."""
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
    def from_json(cls, told: Mapping[str, object]) -> "Offset | None":
        """None before the first batch."""
        if told.get(_FORM) != _VERSION:
            raise InvalidInput(
                f"the checkpoint holds an offset that no stream of this release wrote: {dict(told)!r:.200}. Give the "
                "query a checkpointLocation of its own"
            )
        if told.get("begun") is False:
            return None
        table, branch, whole = (told.get(name) for name in ("table", "branch", "whole"))
        begins, version, row = (told.get(name) for name in ("begins", "version", "row"))
        if not (
            isinstance(table, str)
            and isinstance(branch, str)
            and isinstance(whole, bool)
            and (type(begins) is int and type(version) is int and type(row) is int)
            and 1 <= begins <= version
            and row >= 0
        ):
            raise InvalidInput(
                f"the checkpoint holds a damaged offset: {dict(told)!r:.200}. Give the query a new checkpointLocation"
            )
        return cls(table or None, None if branch == MAIN else branch, begins, whole, version, row)
