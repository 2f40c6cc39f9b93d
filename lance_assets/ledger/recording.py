"""Recording: stores versions on the ledger, each as one materialization event, in the order of the versions.

A run and the sensor may both find a version, and Dagster delivers at least once. Every recorder therefore reads the
ledger, takes the recording lock (`recording_lock.py`), and reads the ledger again. It records the earlier versions that
are missing first, so that the newest is always the last. The order is commit, partition key, event: a partition
that has an event and no key appears on no page, and a key without a commit names no version. `record_in_run` records
the versions of runs, and `discovery/sensor.py` finds those of other writers. `001-one-event-per-version.md` and
`002-version-order.md` give the reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic, sleep
from typing import TypeAlias

import dagster as dg

from lance_assets.ledger.dynamic_partitions import plan_keys, version_keys
from lance_assets.ledger.ledger import (
    Ledger,
    growth_warning,
    latest_partition,
    recorded_data_versions,
    retention_advice,
)
from lance_assets.ledger.partition_keys import is_version_key, partition_key, version_of
from lance_assets.ledger.recording_lock import RecordingLock, may_record
from lance_assets.ledger.sample_rows import sample_metadata
from lance_assets.ledger.version_metadata import (
    TABLE_ERRORS,
    Metadata,
    VersionFacts,
    discovered_facts,
    metadata_of,
    run_id_of,
    tags_of,
)
from lance_assets.provenance.run_provenance import committed_tag
from lance_core import NotFound, Table

RunContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext
"""Context of a step that records versions: of an asset, or of an op."""
EARLIER_MAX = 200
"""Number of earlier versions that a run records. It leaves its own version to the sensor if more are missing."""
_EARLIER_S_MAX = 20.0
"""Seconds after which a run reads no more earlier versions."""
ACTIVE_RUN_CHECKS_MAX = 100
"""Number of times that a run reads the ledger while it waits for the runs of earlier versions."""
_POLL_INTERVAL_S = 0.1
_RESTATABLE_VERSIONS = 100
"""Number of newest versions among which the one to restate is searched."""


class RecordingState(Enum):
    """State of a version on the ledger."""

    MISSING = "missing"
    RECORDED = "recorded"
    TAKEN = "taken"
    """The partition holds another version of the same table with the same number."""


@dataclass(frozen=True, slots=True)
class RunRecording:
    """Result of recording a version in its run."""

    state: RecordingState
    """State of the version before this recording."""
    earlier: tuple[tuple[VersionFacts, Table], ...] = ()
    """Missing earlier versions of other writers that this recording added, with the table at each."""


def build_materialization(
    instance: dg.DagsterInstance, ledger: Ledger, facts: VersionFacts, *, retained: int = 0
) -> dg.AssetMaterialization:
    """Return the event of a version. `retained` is the number of versions on the ledger, this one included."""
    run_is_known = facts.run_id is not None and instance.has_run(facts.run_id)
    metadata = metadata_of(facts, run_is_known=run_is_known, descriptions=ledger.column_descriptions, key=ledger.key)
    if advice := retention_advice(ledger, retained):
        metadata |= {"lance/retained": dg.MetadataValue.int(retained), "lance/advice": dg.MetadataValue.text(advice)}
    return dg.AssetMaterialization(
        asset_key=ledger.key,
        partition=facts.partition,
        description=_describe(facts),
        metadata=metadata,
        tags=tags_of(facts, run_is_known=run_is_known),
    )


def recording_state(facts: VersionFacts, recorded: Mapping[str, str]) -> RecordingState:
    """Return the state of a version, given the data versions of the recorded partitions."""
    data_version = recorded.get(facts.partition)
    if data_version is None:
        return RecordingState.MISSING
    # An event without a data version was reported manually, by a user who saw the version.
    return RecordingState.RECORDED if data_version in ("", facts.data_version) else RecordingState.TAKEN


def record_in_run(context: RunContext, ledger: Ledger, facts: VersionFacts, table: Table) -> RunRecording:
    """Record the version that this run committed, or found already committed, after the earlier ones that are missing.

    `table` is the table at any version.
    """
    instance, key = context.instance, facts.partition
    state = recording_state(facts, recorded_data_versions(instance, ledger, [key]))
    if state is RecordingState.TAKEN:
        context.log.warning(already_recorded_message(ledger, key))
        return RunRecording(state)
    earlier: tuple[tuple[VersionFacts, Table], ...] = ()
    if state is RecordingState.MISSING or key not in instance.get_dynamic_partitions(ledger.partition_set):
        earlier = _RunRecorder(context, ledger, facts, table).record(is_repair=state is RecordingState.RECORDED)
    tags = {ledger.run_tag: key, **committed_tag(table, ledger.branch, facts.version)}
    instance.add_run_tags(context.run.run_id, tags)
    return RunRecording(state, earlier)


@dataclass(slots=True)
class _Backlog:
    """Earlier versions that a run records before its own."""

    versions: list[tuple[VersionFacts, Table]] = field(default_factory=list)
    is_complete: bool = True
    """False if more are missing."""


@dataclass(frozen=True, slots=True)
class _RunRecorder:
    """Recorder of one version of a run."""

    context: RunContext
    ledger: Ledger
    facts: VersionFacts
    table: Table

    def record(self, *, is_repair: bool) -> tuple[tuple[VersionFacts, Table], ...]:
        """Record the version in its place, and return the earlier versions of other writers that were missing."""
        instance, key, run_id = self.context.instance, self.facts.partition, self.context.run.run_id
        self._wait_for_active_runs()
        lock = RecordingLock(instance, self.ledger, f"{run_id}:{key}")
        if not lock.acquire(key, is_repair=is_repair):
            self.context.log.info(
                f"{self.ledger.label}: partition {key} is being recorded by another run, or by the sensor"
            )
            return ()
        try:
            return self._record_in_order(lock)
        finally:
            lock.release()

    def _record_in_order(self, lock: RecordingLock) -> tuple[tuple[VersionFacts, Table], ...]:
        context, ledger, facts, instance = self.context, self.ledger, self.facts, self.context.instance
        versions = self._current_versions()
        if facts.version not in versions:
            context.log.warning(
                f"{ledger.label}: version {facts.version} is gone, or its table was replaced, before it was recorded"
            )
            return ()
        # This state is final: the previous holder of the lock has recorded the version, or never will.
        state = recording_state(facts, recorded_data_versions(instance, ledger, [facts.partition]))
        keys = instance.get_dynamic_partitions(ledger.partition_set)
        backlog = self._read_backlog()
        newest = (
            facts.version
            if backlog.is_complete
            else max((missing.version for missing, _ in backlog.versions), default=0)
        )
        plan = plan_keys(keys, version_keys(versions, facts.incarnation, up_to=newest, listed=keys))
        plan.apply(instance, ledger)
        if not plan.is_complete or not backlog.is_complete:
            context.log.warning(
                f"{ledger.label}: version {facts.version} is not on the ledger yet, since earlier versions come first; "
                "its discovery sensor, or the next run, records them"
            )
        if not plan.is_complete:
            return ()
        before = sum(map(is_version_key, keys))
        retained = before
        latest = latest_partition(instance, ledger)
        last_stored = 0
        for missing, _ in backlog.versions:
            retained += 1
            self._store(missing, retained)
            last_stored = missing.version
        if backlog.is_complete and state is RecordingState.MISSING and lock.is_held():
            retained += 1
            self._store(facts, retained)
            last_stored = facts.version
        if last_stored and _version_in(latest, facts.incarnation) > last_stored:
            restate_newest(instance, ledger, self.table, facts.incarnation)
        if message := growth_warning(ledger, before, retained):
            context.log.warning(message)
        own_run = context.run.run_id
        return tuple((missing, table) for missing, table in backlog.versions if missing.run_id != own_run)

    def _store(self, facts: VersionFacts, retained: int) -> None:
        event = build_materialization(self.context.instance, self.ledger, facts, retained=retained)
        if self.ledger.has_samples and facts.partition == self.facts.partition:
            event = event.with_metadata({**event.metadata, **self._samples()})
        if facts.partition == self.facts.partition or facts.run_id == self.context.run.run_id:
            self.context.log_event(event)
        else:  # Dagster would attribute an event in the log of this run to this run
            self.context.instance.report_runless_asset_event(event)

    def _samples(self) -> Metadata:
        """Return sample rows of the version of this run. A version is recorded even if its rows cannot be read."""
        try:
            return sample_metadata(self.table.at(self.facts.version))
        except TABLE_ERRORS as error:
            self.context.log.warning(
                f"{self.ledger.label}: there are no sample rows of {self.facts.partition}: {error}"
            )
            return {}

    def _wait_for_active_runs(self) -> None:
        """Wait a few seconds for other runs that are about to record an earlier version, so that Dagster links each
        event to its run."""
        instance, missing = self.context.instance, self._missing_versions()
        run_by_partition: dict[str, str] = {}
        for version in missing if len(missing) <= EARLIER_MAX else ():
            try:
                transaction = self.table.at(version).transaction()
            except TABLE_ERRORS:
                continue
            run_id = run_id_of(transaction.properties) if transaction else None
            if run_id and run_id != self.context.run.run_id and may_record(instance, run_id):
                run_by_partition[partition_key(version, self.facts.incarnation)] = run_id
        for _ in range(ACTIVE_RUN_CHECKS_MAX):
            if run_by_partition.keys() <= recorded_data_versions(instance, self.ledger, run_by_partition).keys():
                return
            sleep(_POLL_INTERVAL_S)

    def _missing_versions(self) -> list[int]:
        """Return the earlier versions that are not on the ledger."""
        instance, ledger, incarnation = self.context.instance, self.ledger, self.facts.incarnation
        earlier = [version for version in self._current_versions() if version < self.facts.version]
        latest = _version_in(latest_partition(instance, ledger), incarnation)
        complete_up_to = latest if latest <= self.facts.version else 0
        by_partition = {partition_key(version, incarnation): version for version in earlier if version > complete_up_to}
        recorded = (
            recorded_data_versions(instance, ledger, by_partition).keys()
            if complete_up_to
            else instance.get_materialized_partitions(ledger.key)
        )
        return [version for partition, version in by_partition.items() if partition not in recorded]

    def _current_versions(self) -> Sequence[int]:
        """Return the versions of the table; none if this version is gone, or another table is at its location."""
        try:
            transaction = self.table.at(self.facts.version).transaction()
        except NotFound:
            return ()
        is_same = (transaction.uuid if transaction else None) == self.facts.uuid
        return self.table.version_numbers() if is_same else ()

    def _read_backlog(self) -> _Backlog:
        """Read the missing earlier versions. A damaged version is left out: it gets its event once it is repaired."""
        backlog, deadline = _Backlog(), monotonic() + _EARLIER_S_MAX
        for version in self._missing_versions():
            if len(backlog.versions) == EARLIER_MAX or monotonic() >= deadline:
                backlog.is_complete = False
                break
            try:
                table = self.table.at(version)
                facts = discovered_facts(table, table.version_info(), self.facts.incarnation)
                backlog.versions.append((facts, table))
            except TABLE_ERRORS as error:
                self.context.log.warning(
                    f"{self.ledger.label}: version {version} cannot be read and is recorded once repaired: {error}"
                )
        return backlog


def restate_newest(instance: dg.DagsterInstance, ledger: Ledger, table: Table, incarnation: int) -> None:
    """Store the event of the newest version again if it is not the latest event. The caller holds the recording lock.

    Another event is the latest if an earlier version was recorded late, for example because it was damaged. Dagster
    shows the latest event as the state of the asset.
    """
    if facts := newest_behind_others(instance, ledger, table, incarnation):
        event = build_materialization(instance, ledger, facts)
        note = dg.MetadataValue.text("an earlier version was recorded after this one, which is still the newest")
        instance.report_runless_asset_event(event.with_metadata({**event.metadata, "lance/recorded_again": note}))


def newest_behind_others(
    instance: dg.DagsterInstance, ledger: Ledger, table: Table, incarnation: int
) -> VersionFacts | None:
    """Return the newest version on the ledger if the latest event belongs to another partition, else `None`."""
    versions = table.version_numbers()[-_RESTATABLE_VERSIONS:]
    latest = latest_partition(instance, ledger)
    if versions and latest == partition_key(versions[-1], incarnation):
        return None
    recorded = recorded_data_versions(instance, ledger, [partition_key(version, incarnation) for version in versions])
    for version in reversed(versions):
        key = partition_key(version, incarnation)
        if key == latest:
            return None
        if key not in recorded:
            continue
        try:
            at_version = table.at(version)
            facts = discovered_facts(at_version, at_version.version_info(), incarnation)
        except TABLE_ERRORS:
            continue
        return facts if recording_state(facts, recorded) is RecordingState.RECORDED else None
    return None


def _version_in(partition: str | None, incarnation: int) -> int:
    """Return the version of a partition if it belongs to this incarnation, else 0."""
    if partition is None or not is_version_key(partition):
        return 0
    version = version_of(partition)
    return version if partition_key(version, incarnation) == partition else 0


def already_recorded_message(ledger: Ledger, partition: str) -> str:
    return (
        f"{ledger.label}: a version was not recorded: its partition {partition} holds another version of the same "
        f"number. The table at {ledger.shown_uri} was restored to an older state outside of Lance and then written, or "
        "replaced by a table that cannot be distinguished from it. To give all its versions new partitions, call "
        f"record_again() of the LanceTable {ledger.name!r} once, in Python with access to the Dagster instance"
    )


def _describe(facts: VersionFacts) -> str:
    added = f", {facts.rows_added} rows added" if facts.rows_added else ""
    removed = f", {facts.rows_removed} removed" if facts.rows_removed else ""
    origin = facts.origin
    engine = f", by {facts.writer}" if origin.is_foreign and not facts.run_id else ""
    return f"version {facts.version}: {origin.named_action}{added}{removed}{engine}"
