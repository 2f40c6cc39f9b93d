"""Known defects: errors that pylance 14 raises where it should work. The program runner leaves such a step out.

`test_pylance_defects.py` reproduces each of them in a small test. The message of the error identifies a defect. The
step generators avoid the situations in which pylance goes wrong without an error (`data_steps.py`, `sql_generator.py`).
"""

import re
from dataclasses import dataclass

from tests.interop.programs import Step


@dataclass(frozen=True)
class PylanceDefect:
    name: str
    message: str
    """Regular expression that the message of the error matches."""
    step_names: tuple[str, ...] = ()
    """Steps that can show the defect; empty means all steps."""


PYLANCE_DEFECTS: tuple[PylanceDefect, ...] = (
    PylanceDefect("casts only between relatives", "Cannot cast column", ("cast",)),
    PylanceDefect(
        "a packed struct that is null", "non-nullable child of type .* contains nulls not present in pa", ("update",)
    ),
    PylanceDefect(
        "a function for a table without rows", "gave an error when called with a batch", ("add by function",)
    ),
    PylanceDefect("columns merged from no rows", "HashJoiner: No data", ("merge columns",)),
    PylanceDefect("no keys, to delete both ways", "missing from merge insert input schema", ("upsert",)),
    PylanceDefect("values of a type that the column holds exactly", "should have type .* but type was"),
    PylanceDefect("an extension that has lost its metadata", "does not match the file schema: expected"),
    PylanceDefect("a struct that the data lacks, in 2.0", "does not encode struct validity", ("upsert", "update")),
)


def find_known_defect(step: Step, error: str) -> str | None:
    """Return the name of the defect that this error of pylance shows; `None` if the error is a legitimate refusal."""
    for defect in PYLANCE_DEFECTS:
        if (not defect.step_names or step.name in defect.step_names) and re.search(defect.message, error):
            return defect.name
    return None
