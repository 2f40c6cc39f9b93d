"""What an examination found."""

import enum
from dataclasses import dataclass

from lance_core.format.ids import Version


class Severity(enum.Enum):
    ERROR = "error"
    """Rows are lost, doubled or out of reach, or will be."""
    WARNING = "warning"
    """Nothing is wrong with the rows; something is in the way, or was not looked at."""
    INFO = "info"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    rule: str
    """A short name that stays, for programs."""
    path: str
    """From the table's root."""
    what: str
    repair: str
    version: Version | None = None
    """The oldest one that it was found in; None where it is about no version."""

    def __str__(self) -> str:
        where = self.path if self.version is None else f"version {self.version}, {self.path}"
        return f"{self.severity.value}: {where}: {self.what}. {self.repair} [{self.rule}]"


@dataclass(frozen=True, slots=True)
class Report:
    uri: str
    versions: tuple[Version, ...]
    """Those that were looked at."""
    files: int
    """Files that were looked for."""
    findings: tuple[Finding, ...]
    """The worst first."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def is_sound(self) -> bool:
        """Whether no rows are lost, doubled or out of reach."""
        return not self.errors

    def __str__(self) -> str:
        state = "sound" if self.is_sound else "damaged"
        head = f"{self.uri}: {state}; {len(self.versions)} versions, {self.files} files"
        return "\n".join([head, *map(str, self.findings)])
