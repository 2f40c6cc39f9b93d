"""Conflict table generator: prints the table of conflict rules as Markdown.

python -m tools.conflicts > lance_core/transactions/CONFLICTS.md
"""

from collections.abc import Iterable, Mapping

from lance_core.transactions.conflicts import OPERATION_TYPES, RULES, OperationType, reused_field
from lance_core.transactions.rules import compatible, incompatible, plan_again, unknown_change
from lance_core.transactions.verdicts import Rule


def grid() -> str:
    """Return the table as Markdown."""
    lines = [
        "# Conflict rules",
        "",
        "Generated from `conflicts.py`; a test keeps this file current. Row: the operation being committed. Column:",
        "the operation that was committed before it. An empty cell is `compatible`, ✗ `incompatible`, ↻ `plan_again`,",
        "? `unknown_change`; a number is one of the rules below, which inspect the two operations.",
        "",
    ]
    signs = {compatible: "", incompatible: "✗", plan_again: "↻", unknown_change: "?"}
    rules = list(dict.fromkeys(rule for columns in RULES.values() for rule in _in_order(columns)))
    numbers = {rule: str(number) for number, rule in enumerate((r for r in rules if r not in signs), 1)}
    lines += [
        "| ours \\ theirs | " + " | ".join(kind.name for kind in OPERATION_TYPES) + " |",
        "|---" * (len(OPERATION_TYPES) + 1) + "|",
        *(
            f"| {ours.name} | " + " | ".join((signs | numbers)[rule] for rule in _in_order(RULES[ours])) + " |"
            for ours in OPERATION_TYPES
        ),
        "",
        *(f"- {(signs | numbers)[rule] or 'empty'} `{rule.__name__}`: {_reason(rule)}" for rule in (*signs, *numbers)),
        f"- `{reused_field.__name__}`: {_reason(reused_field)}",
        "",
    ]
    return "\n".join(lines)


def _in_order(columns: Mapping[OperationType, Rule]) -> Iterable[Rule]:
    return (columns[kind] for kind in OPERATION_TYPES)


def _reason(rule: Rule) -> str:
    """Return the docstring of a rule as one line."""
    return " ".join((rule.__doc__ or "").split())


if __name__ == "__main__":
    print(grid(), end="")
