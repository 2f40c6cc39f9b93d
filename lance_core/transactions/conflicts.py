"""May a change stand beside one that was committed first? The answer for every pair of operations, as one table.

Ours is the row, the already committed one is the word in it; the table is not symmetric: an Append after an Overwrite
must not stand, an Overwrite after an Append may. What a rule means is said in `rules.py` and `index_rules.py`. Every
pair is written out, and what we do not know conflicts with everything. `CONFLICTS.md` beside this file is printed from
the table (`python -m tools.conflicts`).
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
UNKNOWN = (AppendFragmentReuseTransitions, DataOverlay, Other)
"""Read, and never applied: what they changed, only their writers know."""
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
    *UNKNOWN,
)


def row(*cells: tuple[Rule, *tuple[OperationType, ...]]) -> Mapping[OperationType, Rule]:
    """Each cell names a rule, and then the operations that it is asked about."""
    found: dict[OperationType, Rule] = {}
    for rule, *kinds in cells:
        for kind in kinds:
            assert kind not in found, f"{kind} has two rules"
            found[kind] = rule
    return found


# fmt: off
RULES: Mapping[OperationType, Mapping[OperationType, Rule]] = {
    Append: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, ReserveFragments, Rewrite, Update,
            UpdateBases, UpdateConfig),
        (mandatory_columns, Merge, Project),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Delete: row(
        (compatible, Append, Clone, CreateIndex, Project, ReserveFragments, UpdateBases, UpdateConfig),
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
        (columns_written, Project),
        (plan_again, Merge),
        (same_shard, UpdateMemWalState),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    Overwrite: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Merge, Project, ReserveFragments, Restore,
            Rewrite, Update, UpdateBases),
        (both_replace, Overwrite),
        (same_config_keys, UpdateConfig),
        (incompatible, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    CreateIndex: row(
        (compatible, Append, Clone, Delete, ReserveFragments, UpdateBases, UpdateConfig),
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
        (same_fragments, DataReplacement, Delete, Update),
        (both_compact, Rewrite),
        (rows_under_new_index, CreateIndex),
        (plan_again, Merge),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    Merge: row(
        (compatible, Clone, ReserveFragments, UpdateBases),
        (plan_again, Append, DataReplacement, Delete, Merge, Rewrite, Update),
        (columns_of_an_index, CreateIndex),
        (metadata_of_columns, UpdateConfig),
        (incompatible, Overwrite, Project, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Project: row(
        (compatible, Clone, CreateIndex, Delete, ReserveFragments, Rewrite, UpdateBases),
        (mandatory_columns, Append, DataReplacement, Update),
        (metadata_of_kept_columns, UpdateConfig),
        (plan_again, Merge, Project),
        (incompatible, Overwrite, Restore, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    Restore: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Merge, Overwrite, Project, ReserveFragments,
            Restore, Rewrite, Update, UpdateBases),
        (metadata_of_restored_columns, UpdateConfig),
        (incompatible, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    ReserveFragments: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Merge, Project, ReserveFragments, Rewrite,
            Update, UpdateBases, UpdateConfig, UpdateMemWalState),
        (incompatible, Overwrite, Restore),
        (unknown_change, *UNKNOWN),
    ),
    UpdateConfig: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Project, ReserveFragments, Rewrite,
            Update, UpdateBases, UpdateMemWalState),
        (settings_of_what_went, Overwrite),
        (metadata_of_restored_columns, Restore),
        (same_settings, UpdateConfig),
        (metadata_of_columns, Merge),
        (unknown_change, *UNKNOWN),
    ),
    DataReplacement: row(
        (compatible, Append, Clone, ReserveFragments, UpdateBases, UpdateConfig),
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
        (incompatible, Append, Clone, DataReplacement, Delete, Merge, Overwrite, Project, Restore, UpdateConfig),
        (unknown_change, *UNKNOWN),
    ),
    UpdateBases: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Merge, Overwrite, Project, ReserveFragments,
            Restore, Rewrite, Update, UpdateConfig, UpdateMemWalState),
        (same_place, UpdateBases),
        (unknown_change, *UNKNOWN),
    ),
    Clone: row(
        (compatible, Append, Clone, CreateIndex, DataReplacement, Delete, Merge, Overwrite, Project, ReserveFragments,
            Restore, Rewrite, Update, UpdateBases, UpdateConfig, UpdateMemWalState),
        (unknown_change, *UNKNOWN),
    ),
    AppendFragmentReuseTransitions: row((unknown_change, *OPERATION_TYPES)),
    DataOverlay: row((unknown_change, *OPERATION_TYPES)),
    Other: row((unknown_change, *OPERATION_TYPES)),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class ConflictResult:
    """The worst verdict, the rule that gave it, and the committed change it is about."""

    verdict: Verdict
    rule: str
    theirs: CommittedTransaction | None

    @property
    def blocks(self) -> bool:
        return self.verdict >= Verdict.RETRY


def judge(ours: Transaction, others: Sequence[CommittedTransaction]) -> ConflictResult:
    """Ours against everything committed since the version it was planned on, oldest first."""
    worst = ConflictResult(Verdict.COMPATIBLE, compatible.__name__, None)
    stored = _referenced_fields(ours.operation)
    gone: set[int] = set()
    for theirs in others:
        rule: Rule = unknown_change
        verdict = Verdict.RETRY
        if theirs.transaction is not None:
            operation = theirs.transaction.operation
            rule = RULES[type(ours.operation)][type(operation)]
            verdict = rule(ours.operation, operation)
            if (schema := _schema_of(operation)) is not None and verdict < Verdict.RETRY:
                live = {node.id for top in schema.fields for node in top.walk()}
                if stored & gone & live:
                    verdict, rule = Verdict.RETRY, reused_field
                gone |= stored - live
        if verdict > worst.verdict:
            worst = ConflictResult(verdict, rule.__name__, theirs)
    return worst


def reused_field(ours: Operation, theirs: Operation) -> Verdict:
    """A column went, and another one got the number of its field: what this holds for the old one would become values
    of the new. Told by two changes of others, one after the other, so it is in no cell of the table."""
    return Verdict.RETRY


def _referenced_fields(operation: Operation) -> set[int]:
    """The numbers by which it speaks of columns."""
    match operation:
        case CreateIndex():
            return {field_id for index in operation.new for field_id in index.field_ids}
        case UpdateConfig():
            return set(operation.field_metadata)
        case _:
            fragments = op.new_fragments(operation)
            return {field_id for each in fragments for file in each.files for field_id in file.field_ids}


def _schema_of(operation: Operation) -> TableSchema | None:
    return operation.schema if isinstance(operation, Merge | Overwrite | Project) else None
