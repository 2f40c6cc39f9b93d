"""What a check is: it looks at one version of a table, and finds that something holds, or not.

    Check.judge(Seen) -> Finding

A check knows nothing of Dagster's runs and events: the same one is asked about each version on the ledger, and about a
version beside the line before anybody else can see it (an audit). `evaluate.py` asks it, and puts down what it found.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

import dagster as dg

from lance_assets.ledger.ledger import check_name
from lance_core import InvalidInput, Table


class Severity(Enum):
    ERROR = "error"
    WARN = "warn"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check is shown."""

    table: Table
    """At the version that is judged."""
    parent: Table | None
    """At the version that it was made upon; None for the first, and where that is gone."""
    is_head: bool = True
    """Whether it is the newest version of its line, as far as whoever asks knows."""
    run_is_known: bool | None = None
    """Whether this Dagster knows the run that the version names; None where it names none, or nobody looked."""
    now: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True)
class CheckResult:
    passed: bool
    description: str
    """A sentence with the figures in it: what was found, and where it was not as it should be, what to do."""
    metadata: Mapping[str, dg.MetadataValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Check(CheckSettings, ABC):
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, subject="a check's name")
        if not isinstance(self.severity, Severity):
            raise self.declaration_error(f"severity is Severity.ERROR or Severity.WARN, not {self.severity!r}")
        self.check()

    def check(self) -> None:
        """What can be known to be wrong when it is declared."""

    @property
    def reads_data(self) -> bool:
        """Whether rows are read for it. One that looks at manifests alone is asked about versions wherever they are
        found, by a sensor too; the others where there is time."""
        return False

    @property
    def description(self) -> str:
        """What it asks for, in a sentence for a page of Dagster."""
        return f"{type(self).__name__}, asked about each version."

    @abstractmethod
    def judge(self, context: CheckContext) -> CheckResult: ...

    def declaration_error(self, reason: str) -> InvalidInput:
        return InvalidInput(f"{type(self).__name__}({self.name!r}): {reason}")
