"""The Dagster asset of a write, from the intention to the version on the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import evaluate_in_run
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import RecordingState, record_in_run
from lance_assets.ledger.version_metadata import (
    VersionFacts,
    committed_facts,
    discovered_facts,
    metadata_of,
    metadata_of_retired,
)
from lance_assets.provenance.properties import RUN_ID
from lance_assets.provenance.run_intents import partition_intent, run_intent
from lance_assets.provenance.run_properties import properties_of_run
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, session_of
from lance_assets.spark.cancellation import cancel_with_caller
from lance_assets.writes.audit import Audit, check_specs
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import Dependencies
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import AuditFailed, Committed, InvalidInput


def write_key(ledger: Ledger, write: Write) -> dg.AssetKey:
    return dg.AssetKey([*ledger.prefix, write.name])


def write_asset(ledger: Ledger, write: Write, *, group: str, checks: Sequence[Check] = ()) -> dg.AssetsDefinition:
    after = Dependencies.of(write.deps)

    @dg.asset(
        key=write_key(ledger, write),
        deps=after.deps,
        ins=after.ins,
        partitions_def=write.partitions,
        group_name=group,
        kinds={"spark", "lance"},
        tags=write.tags,
        description=write.description or f"{write.summary} the Lance table {ledger.label}.",
        code_version=write.code_version,
        retry_policy=write.retry_policy,
        check_specs=check_specs(write.audit, write_key(ledger, write)),
        required_resource_keys={SPARK_RESOURCE_KEY},
        pool=ledger.pool,
    )
    # Where there are checks, Dagster takes this annotation only.
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with translate_errors(ledger, retry_number=context.retry_number):
            return _Step(context, ledger, write, checks).run()

    return asset


def write_in_step(
    context: dg.AssetExecutionContext,
    ledger: Ledger,
    write: Write,
    checks: Sequence[Check] = (),
    *,
    intent_suffix: str = "",
) -> dg.MaterializeResult[None]:
    """As the asset of the write would do it, in a step of another asset; `intent_suffix` tells several of one step apart."""
    return _Step(context, ledger, write, checks, intent_suffix).run()


@dataclass(frozen=True, slots=True)
class _Step:
    context: dg.AssetExecutionContext
    ledger: Ledger
    write: Write
    checks: Sequence[Check]
    intent_suffix: str = ""
    """Which intention of the run it is, where that has several."""

    def run(self) -> dg.MaterializeResult[None]:
        ledger, partition = self.ledger, _partition_key_of(self.context, self.write)
        intent, key = self._intent_of(partition), write_key(ledger, self.write)
        before = ledger.open().version if self.write.commits_several_versions and ledger.exists() else 0
        spark = session_of(getattr(self.context.resources, SPARK_RESOURCE_KEY))
        writing = WriteContext(spark, self.context, partition, ledger)
        audit = Audit(self.write.audit) if self.write.audit else None

        def how() -> SparkWriteOptions:
            properties = properties_of_run(self.context.run, key, partition, intent, writing.inputs.items())
            return SparkWriteOptions(intent=intent, properties=properties, audit=audit, **ledger.access())

        try:
            with cancel_with_caller(spark):
                committed = self.write.execute(writing, how)
        except AuditFailed as error:
            for evaluation in audit.evaluations(key, error.detached_version) if audit else ():
                self.context.log_event(evaluation)
            raise
        if self.write.commits_several_versions:
            self._record_intermediate_versions(before, committed)
        return self._record(committed, self._audit_results(audit, committed))

    def _audit_results(self, audit: Audit | None, committed: Committed) -> list[dg.AssetCheckResult]:
        if audit is None:
            return []
        if committed.already_committed:
            return Audit(audit.checks).asset_check_results(
                f"This had landed before, as version {committed.version}, and was not asked again.", committed.version
            )
        for warning in audit.warnings():
            self.context.log.warning(f"{self.ledger.label}: version {committed.version} was published; {warning}")
        return audit.asset_check_results("Nothing was written, so there was nothing to ask about.", committed.version)

    def _intent_of(self, partition: str | None) -> str:
        key = write_key(self.ledger, self.write)
        if self.write.once_per == "partition" and partition is not None:
            return partition_intent(key, partition)
        return run_intent(self.context.instance, self.context.run, key, partition) + self.intent_suffix

    def _record_intermediate_versions(self, before: int, committed: Committed) -> None:
        """Versions of this run that were committed on the way."""
        epoch = incarnation_of(self.context.instance, self.ledger, self.ledger.identity_of(committed.table))
        for info in committed.table.versions(since=before):
            if info.version < committed.version and info.properties.get(RUN_ID) == self.context.run.run_id:
                table = committed.table.at(info.version)
                facts = discovered_facts(table, info, epoch)
                record_in_run(self.context, self.ledger, facts)
                # Rows are read of the last of them only, by those that ask for rows.
                cheap = [check for check in self.checks if not check.reads_data]
                evaluate_in_run(self.context, self.ledger, cheap, table, facts.partition)

    def _should_evaluate_checks(self, facts: VersionFacts, stood: RecordingState) -> bool:
        """Not one that landed long ago and is only told of again: what is found of it would stand as the newest."""
        if stood is RecordingState.MISSING or facts.run_id == self.context.run.run_id:
            return True
        return self.ledger.open().version == facts.version

    def _record(self, committed: Committed, checked: list[dg.AssetCheckResult]) -> dg.MaterializeResult[None]:
        context, ledger = self.context, self.ledger
        if not committed.attempts and not committed.already_committed:
            context.log.info(f"{ledger.label}: there was nothing to write; it stays at version {committed.version}")
            told = self.write.metadata_of(committed.table)
            return _result_without_partition(
                committed.version, {"lance/rows_added": dg.MetadataValue.int(0), **told}, checked
            )
        if gone := metadata_of_retired(committed):
            context.log.warning(f"{ledger.label}: {gone['lance/gone'].value}. There is no partition to record")
            return _result_without_partition(committed.version, gone, checked)
        facts = committed_facts(
            committed, incarnation_of(context.instance, ledger, ledger.identity_of(committed.table))
        )
        known = facts.run_id is not None and context.instance.has_run(facts.run_id)
        stood = record_in_run(context, ledger, facts)
        if stood is not RecordingState.TAKEN and self._should_evaluate_checks(facts, stood):
            evaluate_in_run(context, ledger, self.checks, committed.table, facts.partition)
        # Where the partition holds another version, this one has none.
        where = {} if stood is RecordingState.TAKEN else {"lance/partition": dg.MetadataValue.text(facts.partition)}
        if committed.already_committed:
            context.log.info(f"{ledger.label}: this landed before, as version {facts.version}; nothing was written now")
        return dg.MaterializeResult(
            metadata={
                **metadata_of(facts, run_is_known=known, with_diagram=True),
                **where,
                **self.write.metadata_of(committed.table),
                "lance/landed_before": dg.MetadataValue.bool(committed.already_committed),
            },
            data_version=dg.DataVersion(facts.data_version),
            check_results=checked,
        )


def _result_without_partition(
    version: int, metadata: Mapping[str, dg.MetadataValue], checked: list[dg.AssetCheckResult]
) -> dg.MaterializeResult[None]:
    shown = {"lance/version": dg.MetadataValue.int(version), **metadata}
    return dg.MaterializeResult(metadata=shown, check_results=checked)


def _partition_key_of(context: dg.AssetExecutionContext, write: Write) -> str | None:
    if write.partitions is None:
        return None
    if not context.has_partition_key:
        raise InvalidInput(
            f"{write.name} makes one version for one partition, and this run names none, or a range of them; "
            "launch it for one partition, or as a backfill with one run a partition"
        )
    return str(context.partition_key)
