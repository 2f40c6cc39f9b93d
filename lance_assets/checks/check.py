"""Check: a rule that is evaluated on one version of a table.

    Check.judge(CheckContext) -> CheckResult

A check knows nothing of Dagster's runs and events. The same check is evaluated on each version of the ledger, and, as
an audit, on a detached version before it is published. `evaluate.py` runs checks and reports their results.
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
    """Severity of a failed check: an audit refuses to publish on ERROR and only logs on WARN."""

    ERROR = "error"
    WARN = "warn"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The version that a check is evaluated on."""

    table: Table
    """The table at the version to evaluate."""
    parent: Table | None
    """The table at the parent version; `None` for the first version, and if the parent no longer exists."""
    is_head: bool = True
    """True if the caller knows no newer version of the branch."""
    run_is_known: bool | None = None
    """True if this Dagster instance knows the run that the version names; `None` if it names none or the caller did
    not ask."""
    now: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one evaluation."""

    passed: bool
    description: str
    """Sentence with the numbers that were measured and, if the check failed, what to do."""
    metadata: Mapping[str, dg.MetadataValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Settings that every check has."""

    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Check(CheckSettings, ABC):
    """Base class of all checks."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name, subject="a check's name")
        if not isinstance(self.severity, Severity):
            raise self.declaration_error(f"severity must be Severity.ERROR or Severity.WARN, not {self.severity!r}")
        self.check()

    def check(self) -> None:
        """Raise `InvalidInput` for options that are wrong before any evaluation."""

    @property
    def reads_data(self) -> bool:
        """True if the check reads rows. Checks that read manifests only are also evaluated by sensors; the others
        only in runs."""
        return False

    @property
    def description(self) -> str:
        """Sentence for Dagster's pages that says what must hold."""
        if type(self).says is not Check.says:  # a check that was written before 0.2.0
            return self.says
        return f"{type(self).__name__}, evaluated on each version."

    @property
    def says(self) -> str:
        """The name of `description` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.description

    @abstractmethod
    def judge(self, context: CheckContext) -> CheckResult:
        """Evaluate the check on one version."""

    def wrong(self, reason: str) -> InvalidInput:
        """The name of `declaration_error` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.declaration_error(reason)

    def declaration_error(self, reason: str) -> InvalidInput:
        """Return an error that names this check."""
        return InvalidInput(f"{type(self).__name__}({self.name!r}): {reason}")
