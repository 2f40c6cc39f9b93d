"""Report of an examination: findings, their severity, and the repairs that can be applied automatically."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from lance_core.format.ids import Version
from lance_core.versions.snapshot import format_ranges


class Extent(enum.Enum):
    """Versions to examine."""

    ALL = "all"
    HEAD = "head"
    """The newest version only, without orphan files and without comparing consecutive versions."""


class Severity(enum.Enum):
    """Severity of a finding."""

    ERROR = "error"
    """Rows are lost, duplicated or unreachable, or will be."""
    WARNING = "warning"
    """The rows are correct, but something blocks an operation, or was not examined."""
    INFO = "info"
    """Information that requires no action."""


class RepairKind(enum.Enum):
    """Subject of a repair, in the order in which repairs are applied."""

    HEAD = "head"
    """Move a damaged newest version aside."""
    ENTRIES = "entries"
    """Make the entries of a manifest store match the existing manifests."""
    TRANSACTIONS = "transactions"
    """Restore missing transaction files from the copy in the manifest."""
    TAGS = "tags"
    """Delete tags of versions that do not exist."""
    INTENTS = "intents"
    """Complete intent records whose change is committed."""
    HOLDS = "holds"
    """Delete leases and sweep notices that cannot be read."""
    INDICES = "indices"
    """Remove fragments from the coverage of a segment that misses rows of them, drop a segment that is unusable, or
    build an index with outdated row numbers again."""
    DATA_FILES = "data-files"
    """Replace damaged or missing files by copies with the recorded hash."""
    CHECKSUMS = "checksums"
    """Record the checksums of files that have none."""
    HINT = "hint"
    """Update the version hint, which saves a listing."""


@dataclass(frozen=True, slots=True)
class Repair:
    """An automatic repair. It checks the situation again before it acts, and does nothing if it has changed."""

    kind: RepairKind
    what: str
    """Action of the repair: a sentence that begins with a verb."""
    apply: Callable[[], str]
    """Applies the repair, and returns a description of what was done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect or remark."""

    severity: Severity
    rule: str
    """Short, stable name for programs."""
    path: str
    """Path relative to the root of the table."""
    what: str
    repair: str
    version: Version | None = None
    """Oldest version with the finding; `None` if it concerns no version."""
    automatic_repair: Repair | None = field(default=None, repr=False, compare=False)
    """`None` if a person has to decide."""

    def __str__(self) -> str:
        where = self.path if self.version is None else f"version {self.version}, {self.path}"
        return f"{self.severity.value}: {where}: {self.what}. {self.repair} [{self.rule}]"


@dataclass(frozen=True, slots=True)
class Chain:
    """Coverage of the hash chain: each version may record the hash of its parent."""

    verified: tuple[Version, ...] = ()
    """Versions whose bytes have the hash that the next version recorded."""
    begins: tuple[Version, ...] = ()
    """Versions that record no parent, which is not a defect: first versions, and those of other engines."""

    def __str__(self) -> str:
        verified = (
            f"hashes match for versions {format_ranges(self.verified)}"
            if self.verified
            else "there are no hashes to check"
        )
        return f"{verified}; the chain begins at {format_ranges(self.begins)}" if self.begins else verified


@dataclass(frozen=True, slots=True)
class Report:
    """Result of an examination."""

    uri: str
    versions: tuple[Version, ...]
    """Versions that were examined."""
    files: int
    """Number of files that were checked."""
    findings: tuple[Finding, ...]
    """Findings, most severe first."""
    chain: Chain = Chain()
    verified_files: int = 0
    """Number of files whose bytes were compared with their recorded checksums."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def is_sound(self) -> bool:
        """`True` if no rows are lost, duplicated or unreachable."""
        return not self.errors

    @property
    def is_clean(self) -> bool:
        """`True` if no action is needed."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    @property
    def _verified_text(self) -> str:
        return f", the bytes of {self.verified_files} verified" if self.verified_files else ""

    def __str__(self) -> str:
        state = "sound" if self.is_sound else "damaged"
        examined = f"{_count_text(len(self.versions), 'version')}, {_count_text(self.files, 'file')}"
        head = f"{self.uri}: {state}; {examined}{self._verified_text}; {self.chain}"
        return "\n".join([head, *map(str, self.findings)])


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
