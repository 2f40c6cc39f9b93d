"""Write options: the keywords that every writer of a table takes, as one value.

Public methods keep the keywords in their signatures. They pass this value on, so that a new option is added in one
place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS

if TYPE_CHECKING:
    from lance_core.table.table import Table

Audit = Callable[["Table", "Table | None"], object]
"""Function that receives a change before any reader can see it: the table with the change, and the table it is based on
(`None` for a first version). It refuses the change by raising; nothing is published then (`AuditFailed`)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write, as the caller passed them."""

    intent: str | None = None
    """Idempotency key: all writes with the same intent commit at most one version."""
    properties: Mapping[str, str] | None = None
    """Properties of the transaction."""
    retries: int = ATTEMPTS
    """Number of times the write is planned or committed before it fails."""
    audit: Audit | None = None
    """Check of the change before it is published. Spark runs it on the driver."""

    def check(self) -> Mapping[str, str]:
        """Raise `InvalidInput` if an option is invalid. Return the properties."""
        validation.check_intent_and_retries(intent=self.intent, retries=self.retries)
        return validation.check_properties(self.properties)
