"""Planted defects of the commit loop and of intents; see `planted_defects.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pyroaring import BitMap

from lance_core import StorageError
from lance_core.commit import data_files, intent_history, loop, write_protocol
from lance_core.commit.write_protocol import Change, Planned, StartedWrite, WriteResult
from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import CommitSummary, IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.format import key_filter, naming
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Delete, Operation, Update
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.storage.store import Put, Store
from lance_core.transactions import rebase
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import RULES, ConflictResult
from lance_core.transactions.rebase import FetchedDeletions, Rebased
from lance_core.transactions.rules import compatible
from lance_core.transactions.verdicts import Verdict
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.snapshot import History, Snapshot, read_history
from tests.histories.defect_patch import DefectPatch


def _skip_search_for_own_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "_with_uuid", lambda others, uuid: None)


def _skip_search_for_earlier_commit(patch: pytest.MonkeyPatch) -> None:
    """Neither the intent nor the uuid of an earlier attempt is searched for."""
    patch.setattr(write_protocol, "find_committed", lambda started: None)
    _skip_search_for_own_commit(patch)


def _forget_intents(patch: pytest.MonkeyPatch) -> None:
    def claim(store: object, intent: str, *, verb: str, base: Version, uuid: str, now_ns: int) -> IntentRecord:
        return IntentRecord(intent, verb, base, uuid, begun_ns=now_ns, heartbeat_ns=now_ns)

    patch.setattr(idempotency, "claim", claim)
    patch.setattr(idempotency, "heartbeat", lambda *args, **named: None)


def _search_since_base_of_repetition(patch: pytest.MonkeyPatch) -> None:
    """The intent is remembered, but its commit is searched for only after the version that the repetition opened."""
    original = write_protocol.begin

    def begin(location: Location, base: Snapshot, **named: object) -> object:
        started = original(location, base, **named)  # type: ignore[arg-type]
        if isinstance(started, StartedWrite) and started.record:
            return replace(started, record=replace(started.record, base_version=base.version))
        return started

    patch.setattr(write_protocol, "begin", begin)
    patch.setattr(intent_history, "read_history", lambda location, since, base=None: None)


def _report_undecided_as_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "_undecided", lambda location, ours, slot, why: StorageError(why))


def _disable_rule(rule: str) -> DefectPatch:
    """Return a patch with which the rule reports no conflict."""

    def disable(patch: pytest.MonkeyPatch) -> None:
        for kind, row in RULES.items():
            disabled = {theirs: compatible if each.__name__ == rule else each for theirs, each in row.items()}
            patch.setitem(RULES, kind, disabled)

    return disable


def _ignore_all_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "judge", lambda ours, others: ConflictResult(Verdict.COMPATIBLE, "none", None))


def _skip_rebase(patch: pytest.MonkeyPatch) -> None:
    """Deletions of one fragment are not merged."""
    patch.setattr(loop, "rebase", lambda ours, base, head, others, deletions: Rebased(ours))


def _delete_same_rows_twice(patch: pytest.MonkeyPatch) -> None:
    original = rebase.rebase

    def rebase_without_own_rows(
        ours: Transaction,
        base: Manifest,
        head: Manifest,
        others: Sequence[CommittedTransaction],
        deletions: FetchedDeletions,
    ) -> Rebased:
        vectors = {
            number: DeletionVector.of(np.setdiff1d(vector.offsets, affected_rows(ours.operation, number)))
            for number, vector in deletions.vectors.items()
        }
        return original(ours, base, head, others, replace(deletions, vectors=vectors))

    def affected_rows(operation: Operation, number: int) -> list[int]:
        assert isinstance(operation, Delete | Update)
        return list(BitMap.deserialize((operation.affected or {})[FragmentId(number)]))

    patch.setattr(loop, "rebase", rebase_without_own_rows)


def _reuse_deletion_file_name(patch: pytest.MonkeyPatch) -> None:
    """Merged deletions overwrite the file of another writer."""
    original = loop.fetch_deletions

    def fetch_deletions(location: Location, fragments: Sequence[Fragment], runtime: Runtime) -> FetchedDeletions:
        deletions = original(location, fragments, runtime)
        return replace(deletions, file_numbers=dict.fromkeys(deletions.file_numbers, 7))

    patch.setattr(loop, "fetch_deletions", fetch_deletions)


def _ignore_shared_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_filter, "may_share_keys", lambda one, other: False)


def _replan_on_first_base(patch: pytest.MonkeyPatch) -> None:
    """A retry uses the plan of the first base version, and claims to be planned on the newest version."""
    plans: dict[int, Operation | Planned | BufferedRows | None] = {}

    def plan_and_finish(
        change: Change, started: StartedWrite, properties: Mapping[str, str], retries: int
    ) -> WriteResult:
        if id(change) not in plans:
            assert isinstance(started.base, Snapshot)
            assert change.plan
            plans[id(change)] = change.plan(started.base)
        planned = plans[id(change)]
        assert not isinstance(planned, BufferedRows | Planned)
        if planned is None:
            return write_protocol.finish_unchanged(started, change.operation)
        return write_protocol.finish(started, planned, properties=properties, attempts=retries)

    patch.setattr(write_protocol, "_plan_and_finish", plan_and_finish)


def _replan_with_new_uuid(patch: pytest.MonkeyPatch) -> None:
    """A retry has a new uuid, so an earlier commit with the old one is not found."""
    original = write_protocol._plan_and_finish

    def plan_and_finish(
        change: Change, started: StartedWrite, properties: Mapping[str, str], retries: int
    ) -> WriteResult:
        return original(change, replace(started, uuid=str(started.runtime.new_uuid())), properties, retries)

    patch.setattr(write_protocol, "_plan_and_finish", plan_and_finish)


def _skip_conflicting_version(patch: pytest.MonkeyPatch) -> None:
    """After a lost race the writer takes the next version without reading the transaction that won."""

    def read_history_without_winner(
        location: Location,
        since: Version,
        base: Snapshot | None,
        known: Sequence[CommittedTransaction],
        taken: Version | None,
        reserved_in: Version | None,
    ) -> History | None:
        history = read_history(location, since, base=base, known=known, existing=reserved_in)
        if history is None or taken is None:
            return history
        return replace(history, others=[committed for committed in history.others if committed.version != taken])

    patch.setattr(loop, "_history", read_history_without_winner)


def _take_unknown_put_for_created(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "Put", SimpleNamespace(CREATED=Put.UNKNOWN, EXISTS=Put.EXISTS))


def _take_existing_version_for_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "Put", SimpleNamespace(CREATED=Put.EXISTS, EXISTS=Put.EXISTS))


def _skip_file_checks(patch: pytest.MonkeyPatch) -> None:
    """A truncated file is committed."""
    patch.setattr(data_files, "check_files", lambda location, files, *, written_by_us=True: None)


def _record_commit_as_next_version(patch: pytest.MonkeyPatch) -> None:
    original = idempotency.record_commit

    def record_commit(store: Store, record: IntentRecord, summary: CommitSummary, *, now_ns: int) -> None:
        original(store, record, replace(summary, version=summary.version + 1), now_ns=now_ns)

    patch.setattr(idempotency, "record_commit", record_commit)


def _record_commit_too_early(patch: pytest.MonkeyPatch) -> None:
    """The record claims a commit in the version that would be next, before the put."""

    def heartbeat(store: Store, record: IntentRecord, *, files: Sequence[str] | None = None, now_ns: int) -> None:
        summary = CommitSummary(record.base_version + 1, record.verb, rows_added=0, rows_removed=0, files=0, bytes=0)
        idempotency.record_commit(store, record, summary, now_ns=now_ns)

    patch.setattr(idempotency, "heartbeat", heartbeat)


def _trust_version_hint(patch: pytest.MonkeyPatch) -> None:
    def find_newest(store: Store) -> tuple[Version, NamingScheme] | None:
        version = version_hint.read_hint(store) if hasattr(store, "put_volatile") else None
        return (version, NamingScheme.V2) if version else None

    patch.setattr(version_hint, "find_newest", find_newest)


def _find_newest_by_modification_time(patch: pytest.MonkeyPatch) -> None:
    def find_newest(store: Store) -> tuple[Version, NamingScheme] | None:
        by_time = sorted(store.list(naming.VERSIONS), key=lambda info: info.modified)
        parsed = [naming.parse_manifest_name(info.path.rpartition("/")[2]) for info in by_time]
        return next((version for version in reversed(parsed) if version), None)

    patch.setattr(version_hint, "find_newest", find_newest)


COMMIT_DEFECTS: Mapping[str, DefectPatch] = {
    "own commit not searched for": _skip_search_for_own_commit,
    "intents forgotten": _forget_intents,
    "search starts at the base of the repetition": _search_since_base_of_repetition,
    "undecided outcome reported as failed": _report_undecided_as_failed,
    "rule incompatible disabled": _disable_rule("incompatible"),
    "rebase skipped": _skip_rebase,
    "same rows deleted twice": _delete_same_rows_twice,
    "deletion file name reused": _reuse_deletion_file_name,
    "shared keys ignored": _ignore_shared_keys,
    "replanned on the first base": _replan_on_first_base,
    "replanned with a new uuid": _replan_with_new_uuid,
    "conflicting version skipped": _skip_conflicting_version,
    "rule same_rows disabled": _disable_rule("same_rows"),
    "rule same_rows_or_new_keys disabled": _disable_rule("same_rows_or_new_keys"),
    "rule new_keys disabled": _disable_rule("new_keys"),
    "rule same_fragments disabled": _disable_rule("same_fragments"),
    "rule plan_again disabled": _disable_rule("plan_again"),
    "unknown put taken for created": _take_unknown_put_for_created,
    "existing version taken for own": _take_existing_version_for_own,
    "file checks skipped": _skip_file_checks,
    "commit recorded as the next version": _record_commit_as_next_version,
    "commit recorded too early": _record_commit_too_early,
    "version hint trusted": _trust_version_hint,
    "newest version by modification time": _find_newest_by_modification_time,
}
"""Defects that seeded simulations of writers detect."""
DIRECT_COMMIT_DEFECTS: Mapping[str, DefectPatch] = {
    "earlier commit not searched for": _skip_search_for_earlier_commit,
    "all conflicts ignored": _ignore_all_conflicts,
}
"""Defects that other harnesses detect."""
