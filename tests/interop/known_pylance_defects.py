"""Where pylance 14 fails, so that a program leaves the step out; `test_pylance_defects.py` has each of them, small. A
fault is told by what pylance says. Where it says nothing and goes wrong, the generator does not go (`data_steps.py`,
`sql_generator.py`).
"""

import re
from dataclasses import dataclass

from tests.interop.programs import Program, Step


@dataclass(frozen=True)
class Fault:
    name: str
    says: str
    """A regular expression."""
    kinds: tuple[str, ...] = ()
    """None are all."""


FAULTS: tuple[Fault, ...] = (
    Fault("casts only between relatives", "Cannot cast column", ("cast",)),
    Fault(
        "a packed struct that is null", "non-nullable child of type .* contains nulls not present in pa", ("update",)
    ),
    Fault("a function for a table without rows", "gave an error when called with a batch", ("add by function",)),
    Fault("columns merged from no rows", "HashJoiner: No data", ("merge columns",)),
    Fault("no keys, to delete both ways", "missing from merge insert input schema", ("upsert",)),
    Fault("an extension that has lost its metadata", "does not match the file schema: expected"),
    Fault("a struct that did not come, in 2.0", "does not encode struct validity", ("upsert", "update")),
)


def known_fault(program: Program, step: Step, refusal: str) -> str | None:
    for fault in FAULTS:
        if (not fault.kinds or step.kind in fault.kinds) and re.search(fault.says, refusal):
            return fault.name
    return None
