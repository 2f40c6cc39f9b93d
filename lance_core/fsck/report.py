"""What an examination found, and what can be done about it at once."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from lance_core.format.ids import Version
from lance_core.versions.snapshot import format_ranges


class Severity(enum.Enum):
    ERROR = "error"
    """Rows are lost, doubled or out of reach, or will be."""
    WARNING = "warning"
    """Nothing is wrong with the rows; something is in the way, or was not looked at."""
    INFO = "info"
    """Worth knowing."""


class RepairKind(enum.Enum):
    """What a repair is about, in the order in which repairs are done."""

    HEAD = "head"
    """A damaged newest version moved aside."""
    ENTRIES = "entries"
    """What a manifest store knows, brought to what is there."""
    TRANSACTIONS = "transactions"
    """Transaction files that are gone, put back from the copy in the manifest."""
    TAGS = "tags"
    """Tags of versions that do not exist, deleted."""
    INTENTS = "intents"
    """Records of intents that landed, told so."""
    HOLDS = "holds"
    """Holds and notices that are none, deleted."""
    INDICES = "indices"
    """Claims of indices that do not hold, taken back; segments that cannot be used, dropped."""
    HINT = "hint"
    """The note that spares a listing, brought up to date."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair. It looks again before it does anything, and does nothing where things are no longer as they were."""

    kind: RepairKind
    what: str
    """What it will do: a sentence that begins with a verb."""
    apply: Callable[[], str]
    """Does it, and says what was done."""


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
    automatic_repair: Repair | None = field(default=None, repr=False, compare=False)
    """None where a person has to decide."""

    def __str__(self) -> str:
        where = self.path if self.version is None else f"version {self.version}, {self.path}"
        return f"{self.severity.value}: {where}: {self.what}. {self.repair} [{self.rule}]"


@dataclass(frozen=True, slots=True)
class Chain:
    """How far the hashes reach that versions tell of the one before."""

    verified: tuple[Version, ...] = ()
    """Versions whose bytes are those that the next one was made upon."""
    begins: tuple[Version, ...] = ()
    """Versions that tell no parent: first ones, and those of other engines. That is no defect."""

    def __str__(self) -> str:
        held = (
            f"hashes hold for versions {format_ranges(self.verified)}"
            if self.verified
            else "no hash was there to check"
        )
        return f"{held}; the chain begins at {format_ranges(self.begins)}" if self.begins else held


@dataclass(frozen=True, slots=True)
class Report:
    uri: str
    versions: tuple[Version, ...]
    """Those that were looked at."""
    files: int
    """Files that were looked for."""
    findings: tuple[Finding, ...]
    """The worst first."""
    chain: Chain = Chain()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def is_sound(self) -> bool:
        """Whether no rows are lost, doubled or out of reach."""
        return not self.errors

    @property
    def is_clean(self) -> bool:
        """Whether nobody has to do anything."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def __str__(self) -> str:
        state = "sound" if self.is_sound else "damaged"
        looked_at = f"{_count_text(len(self.versions), 'version')}, {_count_text(self.files, 'file')}"
        head = f"{self.uri}: {state}; {looked_at}; {self.chain}"
        return "\n".join([head, *map(str, self.findings)])


def _count_text(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
