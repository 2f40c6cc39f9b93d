"""Conflict detection: decides for every pair of operations whether a change is compatible with one committed before.

The rules are a table. Our operation selects the row, and the committed one the entry in it. The table is not symmetric:
an Append after an Overwrite conflicts, an Overwrite after an Append does not. `rules.py` and `index_rules.py` define
the rules. Every pair is written out, and unknown operations conflict with everything. `CONFLICTS.md` in this directory
is generated from the table (`python -m tools.conflicts`). Start with `judge`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lance_core.format import operations as op
from lance_core.format.operations import (
    Append,
    AppendFragmentReuseTransitions,
    Clone,
    CreateIndex,
    DataOverlay,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Other,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
)
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.index_rules import (
    columns_of_an_index,
    indexed_rows_moved,
    indexed_values,
    log_set_up,
    progress_of_new_log,
    rows_under_new_index,
    same_index,
    same_shard,
    values_under_an_index,
)
from lance_core.transactions.rules import (
    both_compact,
    both_replace,
    columns_written,
    compatible,
    incompatible,
    mandatory_columns,
    metadata_of_columns,
    metadata_of_kept_columns,
    metadata_of_restored_columns,
    new_keys,
    overlaid_rows,
    plan_again,
    same_columns,
    same_config_keys,
    same_fragments,
    same_fragments_or_slice,
    same_place,
    same_rows,
    same_rows_or_new_keys,
    same_settings,
    settings_of_what_went,
    target_changed,
    target_columns_dropped,
    target_removed,
    unknown_change,
)
from lance_core.transactions.verdicts import Rule, Verdict

OperationType = type[Operation]
UNKNOWN = (AppendFragmentReuseTransitions, Other)
"""Operations that are decoded but never applied: only their writers know what they changed."""
OPERATION_TYPES: tuple[OperationType, ...] = (
    Append,
    Delete,
    Update,
    Overwrite,
    CreateIndex,
    Rewrite,
    Merge,
    Project,
    Restore,
    ReserveFragments,
    UpdateConfig,
    DataReplacement,
    UpdateMemWalState,
    UpdateBases,
    Clone,
    DataOverlay,
    *UNKNOWN,
)


def row(*cells: tuple[Rule, *tuple[OperationType, ...]]) -> Mapping[OperationType, Rule]:
    """Return one row of the table. Each cell names a rule, followed by the committed operations to which it applies."""
    rules: dict[OperationType, Rule] = {}
    for rule, *kinds in cells:
        for kind in kinds:
            assert kind not in rules, f"{kind} has two rules"
            rules[kind] = rule
    return rules


# fmt: off
RULES: Mapping[OperationType, Mapping[OperationType, Rule]] = {
    Append: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, ReserveFragments, Rewrite,
            Update, UpdateBases, UpdateConfig),
        (mandatory_columns, Merge, Project),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Delete: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, Project, ReserveFragments, UpdateBases, UpdateConfig),
        (same_rows, Delete, Update),
        (same_fragments, DataReplacement, Rewrite),
        (plan_again, Merge),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Update: row(
        (compatible, Clone, CreateIndex, ReserveFragments, UpdateBases, UpdateConfig),
        (new_keys, Append),
        (same_rows, Delete),
        (same_rows_or_new_keys, Update),
        (same_fragments, Rewrite),
        (same_fragments_or_slice, DataReplacement),
        (overlaid_rows, DataOverlay),
        (columns_written, Project),
        (plan_again, Merge),
        (same_shard, UpdateMemWalState),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    Overwrite: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Merge, Project, ReserveFragments,
            Restore, Rewrite, Update, UpdateBases),
        (both_replace, Overwrite),
        (same_config_keys, UpdateConfig),
        (incompatible, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    CreateIndex: row(
        (compatible, Append, Clone, DataOverlay, Delete, ReserveFragments, UpdateBases, UpdateConfig),
        (values_under_an_index, Update),
        (same_index, CreateIndex),
        (indexed_rows_moved, Rewrite),
        (indexed_values, DataReplacement),
        (columns_of_an_index, Merge, Project),
        (log_set_up, UpdateMemWalState),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    Rewrite: row(
        (compatible, Append, Clone, Project, ReserveFragments, UpdateBases, UpdateConfig, UpdateMemWalState),
        (same_fragments, DataOverlay, DataReplacement, Delete, Update),
        (both_compact, Rewrite),
        (rows_under_new_index, CreateIndex),
        (plan_again, Merge),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    Merge: row(
        (compatible, Clone, ReserveFragments, UpdateBases),
        (plan_again, Append, DataOverlay, DataReplacement, Delete, Merge, Rewrite, Update),
        (columns_of_an_index, CreateIndex),
        (metadata_of_columns, UpdateConfig),
        (incompatible, Overwrite, Project, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Project: row(
        (compatible, Clone, CreateIndex, Delete, ReserveFragments, Rewrite, UpdateBases),
        (mandatory_columns, Append, DataOverlay, DataReplacement, Update),
        (metadata_of_kept_columns, UpdateConfig),
        (plan_again, Merge, Project),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Restore: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Merge, Overwrite, Project,
            ReserveFragments, Restore, Rewrite, Update, UpdateBases),
        (metadata_of_restored_columns, UpdateConfig),
        (incompatible, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    ReserveFragments: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Merge, Project, ReserveFragments,
            Rewrite, Update, UpdateBases, UpdateConfig, UpdateMemWalState),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    UpdateConfig: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Project, ReserveFragments,
            Rewrite, Update, UpdateBases, UpdateMemWalState),
        (settings_of_what_went, Overwrite),
        (metadata_of_restored_columns, Restore),
        (same_settings, UpdateConfig),
        (metadata_of_columns, Merge),
        (unknown_change, *UNKNOWN),
    ),
    DataReplacement: row(
        (compatible, Append, Clone, DataOverlay, ReserveFragments, UpdateBases, UpdateConfig),
        (target_removed, Delete),
        (target_changed, Update),
        (target_columns_dropped, Project),
        (same_columns, DataReplacement),
        (same_fragments, Rewrite),
        (indexed_values, CreateIndex),
        (plan_again, Merge),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    UpdateMemWalState: row(
        (compatible, ReserveFragments, Rewrite, UpdateBases),
        (same_shard, Update, UpdateMemWalState),
        (progress_of_new_log, CreateIndex),
        (incompatible, Append, Clone, DataOverlay, DataReplacement, Delete, Merge, Overwrite, Project, Restore,
            UpdateConfig),
        (unknown_change, *UNKNOWN),
    ),
    UpdateBases: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Merge, Overwrite, Project,
            ReserveFragments, Restore, Rewrite, Update, UpdateConfig, UpdateMemWalState),
        (same_place, UpdateBases),
        (unknown_change, *UNKNOWN),
    ),
    Clone: row(
        (compatible, Append, Clone, CreateIndex, DataOverlay, DataReplacement, Delete, Merge, Overwrite, Project,
            ReserveFragments, Restore, Rewrite, Update, UpdateBases, UpdateConfig, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    AppendFragmentReuseTransitions: row((unknown_change, *OPERATION_TYPES)),
    DataOverlay: row((unknown_change, *OPERATION_TYPES)),
    Other: row((unknown_change, *OPERATION_TYPES)),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class ConflictResult:
    """The worst verdict, the rule that returned it, and the committed transaction concerned."""

    verdict: Verdict
    rule: str
    theirs: CommittedTransaction | None

    @property
    def blocks(self) -> bool:
        return self.verdict >= Verdict.RETRY


def judge(ours: Transaction, others: Sequence[CommittedTransaction]) -> ConflictResult:
    """Compare our transaction with all those committed since the version on which it was planned, oldest first."""
    worst = ConflictResult(Verdict.COMPATIBLE, compatible.__name__, None)
    stored = _referenced_fields(ours.operation)
    dropped_fields: set[int] = set()
    for theirs in others:
        rule: Rule = unknown_change
        verdict = Verdict.RETRY
        if theirs.transaction is not None:
            operation = theirs.transaction.operation
            rule = RULES[type(ours.operation)][type(operation)]
            verdict = rule(ours.operation, operation)
            if (schema := _schema_of(operation)) is not None and verdict < Verdict.RETRY:
                live = {node.id for top in schema.fields for node in top.walk()}
                if stored & dropped_fields & live:
                    verdict, rule = Verdict.RETRY, reused_field
                dropped_fields |= stored - live
        if isinstance(ours.operation, Restore) and not ours.operation.undoes_unseen:
            verdict, rule = Verdict.INCOMPATIBLE, unseen_version
        if verdict > worst.verdict:
            worst = ConflictResult(verdict, rule.__name__, theirs)
    return worst


def unseen_version(ours: Operation, theirs: Operation) -> Verdict:
    """A restore that its caller bounds to the versions that it has seen would undo a later one. Every operation
    conflicts with it, so it is in no cell of the table."""
    return Verdict.INCOMPATIBLE


def reused_field(ours: Operation, theirs: Operation) -> Verdict:
    """A column was dropped and another column got its field id, so the values that our operation has for the old column
    would become values of the new one. Two later changes by others cause this together, so it is in no cell of the
    table."""
    return Verdict.RETRY


def _referenced_fields(operation: Operation) -> set[int]:
    """Return the ids by which an operation refers to columns."""
    match operation:
        case CreateIndex():
            return {field_id for index in operation.new for field_id in index.field_ids}
        case UpdateConfig():
            return set(operation.field_metadata)
        case _:
            fragments = op.new_fragments(operation)
            return {field_id for fragment in fragments for file in fragment.files for field_id in file.field_ids}


def _schema_of(operation: Operation) -> TableSchema | None:
    return operation.schema if isinstance(operation, Merge | Overwrite | Project) else None
