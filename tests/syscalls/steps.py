"""Steps of the workload that the fault harnesses run, and the rows that each of them leaves.

Every engine knows a step by its name. `apply_step` is the reference model: it changes a mapping of `id` to `n`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TAG = "good"
BRANCH = "dev"
RETAINED = 3
"""Number of versions that the cleanup retains."""
MARKER = (999, 999)
"""Row of the commit that must be possible in every state."""
CREATED = {row: row for row in range(8)}
DELETED = (1, 5)
UPDATED_BELOW = 4
UPSERTED = {3: 33, 50: 50}
CONCURRENT_ROWS = ((300, 301), (310, 311))
"""Rows that concurrent processes append, one version each."""


@dataclass(frozen=True, slots=True)
class Step:
    rows: Mapping[int, int] = field(default_factory=dict)
    """Rows that the step appends."""
    is_on_branch: bool = False


STEPS: Mapping[str, Step] = {
    "create": Step(),
    "append": Step({10: 0, 11: 0, 12: 0}),
    "delete": Step(),
    "update": Step(),
    "upsert": Step(),
    "create index": Step(),
    "tag": Step(),
    "append again": Step({20: 0, 21: 0}),
    "compact": Step(),
    "branch": Step(),
    "append to the branch": Step({70: 0}, is_on_branch=True),
    "append concurrently": Step({row: 0 for rows in CONCURRENT_ROWS for row in rows}),
    "clean up": Step(),
    "append at the end": Step({40: 0}),
}


def apply_step(rows: dict[int, int], name: str) -> None:
    """Change the rows of the branch on which the step commits."""
    match name:
        case "create":
            rows.update(CREATED)
        case "delete":
            for row in DELETED:
                rows.pop(row, None)
        case "update":
            rows.update({row: number + 100 for row, number in rows.items() if row < UPDATED_BELOW})
        case "upsert":
            rows.update(UPSERTED)
        case _:
            rows.update(STEPS[name].rows)


def expected_rows(steps: tuple[str, ...]) -> dict[str, dict[int, int]]:
    """Return the rows after each of the steps, on the branch on which it commits."""
    main: dict[int, int] = {}
    branch: dict[int, int] = {}
    rows_after = {}
    for name in steps:
        rows = branch if STEPS[name].is_on_branch else main
        apply_step(rows, name)
        if name == "branch":
            branch = dict(main)
        rows_after[name] = dict(rows)
    return rows_after
