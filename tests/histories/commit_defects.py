"""Ways in which the product could be broken, each a small one, and each to be noticed by the histories: a harness that
misses a defect is no evidence.

    noticed(DEFECTS["no look for our own"], range(300))

Defects of the loop and of intents are here, those of cleanup and of what it must not break in `cleanup_defects.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import LanceError, StorageError
from lance_core.commit import change as changes
from lance_core.commit import data_files, loop, write_protocol
from lance_core.commit.change import Change, Planned
from lance_core.commit.write_protocol import StartedWrite
from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import CommitSummary, IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.format import key_filter
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.ids import FragmentId, Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Delete, Operation, Update
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.storage.store import Put, Store
from lance_core.transactions import rebase
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import RULES
from lance_core.transactions.rebase import FetchedInputs, Rebased, RequiredInputs
from lance_core.transactions.rules import compatible
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.snapshot import History, Snapshot, read_history
from tests.histories.simulated_network import CALM, HARD
from tests.histories.simulation import Simulation

Breaks = Callable[[pytest.MonkeyPatch], None]


def in_any_weather(seed: int) -> Simulation:
    return Simulation(seed, odds=HARD if seed % 2 else CALM)


@dataclass(frozen=True)
class Defect:
    breaks: Breaks
    history: Callable[[int], Simulation] = in_any_weather


def noticed(defect: Defect, seeds: range) -> str:
    """By which seed first, and how; empty if by none of them."""
    with pytest.MonkeyPatch.context() as patch:
        defect.breaks(patch)
        for seed in seeds:
            try:
                defect.history(seed).run().check()
            except (
                AssertionError,
                KeyError,
                LanceError,
                pa.ArrowInvalid,
            ) as error:  # what is broken can also trip over itself
                return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


def _no_look_for_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_with_uuid", lambda others, uuid: None)


def _no_memory_of_intents(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(store: object, intent: str, *, verb: str, base: Version, uuid: str, now_ns: int) -> IntentRecord:
        return IntentRecord(intent, verb, base, uuid, begun_ns=now_ns, heartbeat_ns=now_ns)

    monkeypatch.setattr(idempotency, "claim", claim)
    monkeypatch.setattr(idempotency, "heartbeat", lambda *args, **named: None)


def _searched_since_the_base_of_the_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intent is remembered, but its landing is looked for only after the version that the repetition opened."""
    real = write_protocol.begin

    def begin(location: Location, base: Snapshot, **named: object) -> object:
        begun = real(location, base, **named)  # type: ignore[arg-type]
        if isinstance(begun, write_protocol.StartedWrite) and begun.record:
            return replace(begun, record=replace(begun.record, base_version=base.version))
        return begun

    monkeypatch.setattr(write_protocol, "begin", begin)
    monkeypatch.setattr(write_protocol, "read_history", lambda location, since, base=None: None)


def _undecided_called_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_undecided", lambda location, ours, slot, why: StorageError(why))


def _blind_to(rule: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The rule never objects."""

    def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
        for kind, row in RULES.items():
            blind = {theirs: compatible if each.__name__ == rule else each for theirs, each in row.items()}
            monkeypatch.setitem(RULES, kind, blind)

    breaks.__name__ = f"_blind_to_{rule}"
    return breaks


def _incompatible_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned before an overwrite or a restore stands."""
    _blind_to("incompatible")(monkeypatch)


def _deletions_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "rebase", lambda ours, base, head, others, fetched: Rebased(ours))


def _the_same_row_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rebase.rebase

    def broken(
        ours: Transaction,
        base: Manifest | None,
        head: Manifest | None,
        others: Sequence[CommittedTransaction],
        fetched: FetchedInputs,
    ) -> Rebased:
        forgotten = {
            number: DeletionVector.of(np.setdiff1d(vector.offsets, affected(ours.operation, number)))
            for number, vector in fetched.deletions.items()
        }
        return real(ours, base, head, others, replace(fetched, deletions=forgotten))

    def affected(operation: Operation, number: int) -> list[int]:
        assert isinstance(operation, Delete | Update)
        return list(BitMap.deserialize((operation.affected or {})[FragmentId(number)]))

    monkeypatch.setattr(loop, "rebase", broken)


def _one_file_for_all_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joined rows go where somebody's already are."""
    real = loop.fetch_inputs

    def fetch(location: Location, wanted: RequiredInputs, runtime: Runtime) -> FetchedInputs:
        fetched = real(location, wanted, runtime)
        return replace(fetched, file_numbers=dict.fromkeys(fetched.file_numbers, 7))

    monkeypatch.setattr(loop, "fetch_inputs", fetch)


def _keys_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "may_share_keys", lambda one, other: False)


def _planned_again_on_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-run plans on the first version, and says that it was the newest."""
    plans: dict[int, Operation | Planned | BufferedRows | None] = {}

    def once(
        change: Change, begun: StartedWrite, properties: Mapping[str, str], retries: int
    ) -> write_protocol.WriteResult:
        if id(change) not in plans:
            assert isinstance(begun.base, Snapshot)
            assert change.plan
            plans[id(change)] = change.plan(begun.base)
        planned = plans[id(change)]
        assert not isinstance(planned, BufferedRows | Planned)
        if planned is None:
            return write_protocol.finish_unchanged(begun, change.operation)
        return write_protocol.finish(begun, planned, properties=properties, attempts=retries)

    monkeypatch.setattr(changes, "_plan_and_finish", once)


def _planned_again_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-run is a new intention, so an earlier landing of the old one is not looked for."""
    real = changes._plan_and_finish

    def once(
        change: Change, begun: StartedWrite, properties: Mapping[str, str], retries: int
    ) -> write_protocol.WriteResult:
        return real(change, replace(begun, uuid=str(begun.runtime.new_uuid())), properties, retries)

    monkeypatch.setattr(changes, "_plan_and_finish", once)


def _a_slot_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody was first, the next version is taken for granted: it is not looked whose it is."""

    def look(
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
        return replace(history, others=[landed for landed in history.others if landed.version != taken])

    monkeypatch.setattr(loop, "_history", look)


def _no_answer_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Put", SimpleNamespace(CREATED=Put.UNKNOWN, EXISTS=Put.EXISTS))


def _somebody_first_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Put", SimpleNamespace(CREATED=Put.EXISTS, EXISTS=Put.EXISTS))


def _files_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was cut short is committed as it is."""
    monkeypatch.setattr(data_files, "check_files", lambda location, files: None)


def _landing_noted_under_the_next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = idempotency.record_commit

    def note(store: Store, record: IntentRecord, landing: CommitSummary, *, now_ns: int) -> None:
        real(store, record, replace(landing, version=landing.version + 1), now_ns=now_ns)

    monkeypatch.setattr(idempotency, "record_commit", note)


def _landing_noted_before_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record says that it landed in the version that would be next."""

    def beat(store: Store, record: IntentRecord, *, files: Sequence[str], now_ns: int) -> None:
        landing = CommitSummary(record.base_version + 1, record.verb, rows_added=0, rows_removed=0, files=0, bytes=0)
        idempotency.record_commit(store, record, landing, now_ns=now_ns)

    monkeypatch.setattr(idempotency, "heartbeat", beat)


def _hint_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(store: Store) -> tuple[Version, NamingScheme] | None:
        version = version_hint.read_hint(store) if hasattr(store, "put_volatile") else None
        return (version, NamingScheme.V2) if version else None

    monkeypatch.setattr(version_hint, "find_newest", newest)


def _named(breaks: Sequence[Breaks]) -> dict[str, Defect]:
    return {each.__name__.strip("_").replace("_", " "): Defect(each) for each in breaks}


DEFECTS = _named(
    [
        _no_look_for_our_own,
        _no_memory_of_intents,
        _searched_since_the_base_of_the_repetition,
        _undecided_called_failed,
        _incompatible_once_only,
        _deletions_not_joined,
        _the_same_row_twice,
        _one_file_for_all_deletions,
        _keys_not_told,
        _planned_again_on_what_is_old,
        _planned_again_under_another_name,
        _a_slot_forgotten,
        *map(_blind_to, ("same_rows", "same_rows_or_new_keys", "new_keys", "same_fragments", "plan_again")),
        _no_answer_taken_for_done,
        _somebody_first_taken_for_us,
        _files_not_looked_at,
        _landing_noted_under_the_next_version,
        _landing_noted_before_it_is_one,
        _hint_believed,
    ]
)
