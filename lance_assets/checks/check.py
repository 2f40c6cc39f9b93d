"""What a check is: it looks at one version of a table, and finds that something holds, or not.

    Check.judge(Seen) -> Finding

A check knows nothing of Dagster's runs and events: the same one is asked about each version on the ledger, and about a
version beside the line before anybody else can see it (an audit).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import dagster as dg

from lance_assets.ledger import check_word
from lance_core import InvalidInput, Table


class Severity(Enum):
    ERROR = "error"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check is shown."""

    table: Table
    """At the version that is judged."""
    parent: Table | None
    """At the version that it was made upon; None for the first, and where that is gone."""


@dataclass(frozen=True, slots=True)
class Finding:
    passed: bool
    description: str
    """A sentence with the figures in it: what was found, and where it was not as it should be, what to do."""
    metadata: Mapping[str, dg.MetadataValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Check(Common, ABC):
    name: str

    def __post_init__(self) -> None:
        check_word(self.name, what="a check's name")
        if not isinstance(self.severity, Severity):
            raise self.wrong(f"severity is Severity.ERROR or Severity.WARN, not {self.severity!r}")
        self.check()

    def check(self) -> None:
        """What can be known to be wrong when it is declared."""

    @abstractmethod
    def judge(self, seen: Seen) -> Finding: ...

    def wrong(self, why: str) -> InvalidInput:
        return InvalidInput(f"{type(self).__name__}({self.name!r}): {why}")
