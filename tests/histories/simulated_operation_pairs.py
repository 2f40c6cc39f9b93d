"""Pairs of simulated operations that meet, each pair with another conflict."""

from tests.histories.simulated_operations import SimulatedOperation

FIRST_ROOTS = frozenset({"r0", "r1"})
SECOND_ROOTS = frozenset({"r1", "r2"})
UPSERTED_ROOTS = frozenset({"r1", "k0"})
OPERATION_PAIRS = {
    "appends": (SimulatedOperation("append", "a"), SimulatedOperation("append", "b")),
    "deletions of one fragment": (
        SimulatedOperation("delete", "a", frozenset({"r0"})),
        SimulatedOperation("delete", "b", frozenset({"r1"})),
    ),
    "deletions of one row": (
        SimulatedOperation("delete", "a", FIRST_ROOTS),
        SimulatedOperation("delete", "b", SECOND_ROOTS),
    ),
    "an update concurrent with a delete": (
        SimulatedOperation("move", "a", FIRST_ROOTS),
        SimulatedOperation("delete", "b", SECOND_ROOTS),
    ),
    "a column rewrite concurrent with an update": (
        SimulatedOperation("rewrite column", "a", FIRST_ROOTS),
        SimulatedOperation("move", "b", frozenset({"r2"})),
    ),
    "upserts of one key": (
        SimulatedOperation("upsert", "a", UPSERTED_ROOTS),
        SimulatedOperation("upsert", "bb", UPSERTED_ROOTS),
    ),
    "an upsert concurrent with an append": (
        SimulatedOperation("upsert", "a", UPSERTED_ROOTS),
        SimulatedOperation("append a key", "b", frozenset({"k0"})),
    ),
    "a compaction concurrent with a delete": (
        SimulatedOperation("compact", "a"),
        SimulatedOperation("delete", "b", frozenset({"r1"})),
    ),
    "an added column concurrent with an append": (
        SimulatedOperation("add column", "a"),
        SimulatedOperation("append", "b"),
    ),
    "an overwrite concurrent with an append": (
        SimulatedOperation("overwrite", "a", can_replan=False),
        SimulatedOperation("append", "b", can_replan=False),
    ),
}
