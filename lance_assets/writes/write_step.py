"""Step of a write asset: from the intent to the version on the ledger.

The step chooses the intent, executes the write, records the committed versions on the ledger and evaluates the
checks.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import evaluate_in_run
from lance_assets.common.code_location import code_reference, find_function, locate_at
from lance_assets.failures.error_translation import translate_errors
from lance_assets.io_manager.run_partitions import shown_keys, step_keys
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import RecordingState, record_in_run
from lance_assets.ledger.version_metadata import (
    VersionFacts,
    committed_facts,
    discovered_facts,
    metadata_of,
    metadata_of_retired,
)
from lance_assets.provenance.column_sources import COLUMN_SOURCES, encode_column_sources
from lance_assets.provenance.properties import RUN_ID
from lance_assets.provenance.run_provenance import inputs_of_step, partition_intent, properties_of_run, run_intent
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, session_of
from lance_assets.spark.cancellation import cancel_with_caller
from lance_assets.writes.asset_options import automation_condition, freshness_policy
from lance_assets.writes.audit import Audit, check_specs, combine_results
from lance_assets.writes.branch_creation import ensure_branch
from lance_assets.writes.context import NoSession, WriteContext
from lance_assets.writes.dependencies import Dependencies, InputTable, input_parameters, resource_names
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import AuditFailed, Committed, InvalidInput, LanceError, Table
from lance_core.progress import log_reports, reporting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_key(ledger: Ledger, write: Write) -> dg.AssetKey:
    """Return the asset key of a write."""
    return dg.AssetKey([*ledger.prefix, write.name])


def write_asset(ledger: Ledger, write: Write, *, group: str, checks: Sequence[Check] = ()) -> dg.AssetsDefinition:
    """Return the Dagster asset of a write. `checks` are those of the table, evaluated on the versions that the write
    commits."""
    dependencies, label = Dependencies.of(write.deps, write.ins), write_key(ledger, write).to_user_string()

    resources = resource_names(write.function, write.context_arguments)
    required = {write.resource_key, *write.required_resource_keys, *resources}

    # If the asset has checks, Dagster accepts this annotation only.
    def asset(context: dg.AssetExecutionContext, **loaded: object) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with translate_errors(ledger, retry_number=context.retry_number):
            values = {**loaded, **{name: getattr(context.resources, name) for name in resources}}
            return _Step(context, ledger, write, checks, loaded=values).run()

    # Dagster reads the inputs and the config of the asset from the parameters of the user's function.
    own = inspect.signature(asset)
    loaded = input_parameters(write.function, write.context_arguments, write.ins)
    asset.__signature__ = own.replace(parameters=[own.parameters["context"], *loaded])  # type: ignore[attr-defined]
    function, declared = find_function(write.function), write.declared_at
    # Dagster leads to the function only; the line of a declaration is metadata, and so is that of YAML for every write.
    refers = declared is not None and (function is None or not declared.is_python)
    return dg.asset(
        locate_at(function or declared, is_function=function is not None)(asset),
        key=write_key(ledger, write),
        deps=dependencies.deps,
        ins=dependencies.ins,
        partitions_def=write.partitions,
        backfill_policy=write.backfill_policy,
        description=write.description or write.default_description(ledger.label),
        metadata={**code_reference(declared if refers else None), **(write.metadata or {})},
        tags=write.tags,
        op_tags=write.op_tags,
        owners=write.owners,
        kinds={"spark", "lance"} if write.kinds is None else set(write.kinds),
        group_name=write.group_name or group,
        automation_condition=automation_condition(write.automation_condition, label, ledger.key),
        freshness_policy=freshness_policy(write.freshness_policy, label),
        code_version=write.code_version,
        retry_policy=write.retry_policy,
        hooks=None if write.hooks is None else set(write.hooks),
        pool=write.pool or ledger.pool,
        config_schema=write.asset_config_schema,
        required_resource_keys=required - set(write.resource_defs or ()),
        resource_defs=write.resource_defs,
        check_specs=[
            *check_specs(write.audit, write_key(ledger, write)),
            *(dg.AssetCheckSpec(name, asset=write_key(ledger, write)) for name in write.reported_checks),
        ],
    )


def write_in_step(
    context: dg.AssetExecutionContext,
    ledger: Ledger,
    write: Write,
    checks: Sequence[Check] = (),
    *,
    intent_suffix: str = "",
) -> dg.MaterializeResult[None]:
    """Execute a write in a step of another asset, as its own asset would. `intent_suffix` distinguishes several
    writes of one step."""
    return _Step(context, ledger, write, checks, intent_suffix).run()


@dataclass(frozen=True, slots=True)
class _Step:
    """Execution of one write in one Dagster step."""

    context: dg.AssetExecutionContext
    ledger: Ledger
    write: Write
    checks: Sequence[Check]
    intent_suffix: str = ""
    """Suffix of the run's intent, if the run has several."""
    loaded: Mapping[str, object] = field(default_factory=dict)
    """Values of the inputs that I/O managers have loaded, of resources and of `config`."""

    def run(self) -> dg.MaterializeResult[None]:
        keys = _partition_keys_of(self.context, self.write)
        if self.ledger.branch is not None:
            ensure_branch(self.ledger, create=self.write.create_branch, log=self.context.log)
        if len(keys) < 2 or self.write.commit_per == "run":
            return self._write_version(keys)
        return self._write_versions(keys)

    def _write_versions(self, keys: Sequence[str]) -> dg.MaterializeResult[None]:
        """Write a version for each partition. If one fails, those before it are materialized nonetheless."""
        asset_key = write_key(self.ledger, self.write)
        results: dict[str, dg.MaterializeResult[None]] = {}
        try:
            for number, key in enumerate(keys, start=1):
                self.context.log.info(f"{self.ledger.label}: partition {key}, {number} of {len(keys)}")
                results[key] = self._write_version((key,))
        except Exception:
            for key, result in results.items():
                self.context.log_event(_materialization(asset_key, key, result))
            raise
        for key, result in results.items():
            self.context.add_asset_metadata(result.metadata or {}, asset_key=asset_key, partition_key=key)
        return dg.MaterializeResult(check_results=combine_results(results))

    def _write_version(self, keys: Sequence[str]) -> dg.MaterializeResult[None]:
        """Write one version for these partitions, or for the table if there are none."""
        ledger, partition = self.ledger, shown_keys(keys) if keys else None
        intent, key = self._intent_of(partition), write_key(ledger, self.write)
        version_before = ledger.open().version if self.write.commits_several_versions and ledger.exists() else 0
        spark = None if self.write.is_remote else session_of(getattr(self.context.resources, SPARK_RESOURCE_KEY))
        write_context = WriteContext(spark or cast("SparkSession", NoSession()), self.context, tuple(keys), ledger)
        write_context.input_values = self._input_values(write_context)
        audit = Audit(self.write.audit) if self.write.audit else None

        def make_options() -> SparkWriteOptions:
            step = self.context.get_step_execution_context()
            opened = inputs_of_step(step.run_id, step.step.key)  # through a LanceResource
            inputs = [*write_context.inputs.items(), *opened]
            properties = properties_of_run(self.context.run, key, partition, intent, inputs)
            sources = self.write.column_sources(write_context)
            if sources and (encoded := encode_column_sources(sources)):
                properties[COLUMN_SOURCES] = encoded
            return SparkWriteOptions(intent=intent, properties=properties, audit=audit, **ledger.access())

        try:
            with cancel_with_caller(spark) if spark else nullcontext(), self._progress_in_log():
                committed = self.write.execute(write_context, make_options)
        except AuditFailed as error:
            for evaluation in audit.evaluations(key, error.detached_version) if audit else ():
                self.context.log_event(evaluation)
            raise
        except Exception:
            self._record_despite_error(write_context, intent)
            raise
        if self.write.commits_several_versions:
            self._record_intermediate_versions(version_before, committed)
        results = [*self._audit_results(audit, committed), *write_context.check_results]
        return self._record(committed, results, write_context.metadata)

    def _progress_in_log(self) -> AbstractContextManager[object]:
        """Return a context in which progress reports go to the log of the run."""
        if not self.write.reports_progress:
            return nullcontext()
        return reporting(log_reports(self.context.log.info), self.write.name)

    def _input_values(self, ctx: WriteContext) -> dict[str, object]:
        """Return the loaded inputs, and a DataFrame of the newest version of each table among the inputs."""
        tables = {name: each for name, each in self.write.ins.items() if isinstance(each, InputTable)}
        return {**self.loaded, **{name: ctx.read(table) for name, table in tables.items()}}

    def _record_despite_error(self, ctx: WriteContext, intent: str) -> None:
        """Record the version of a write that failed after its commit, so that the ledger shows what the table has."""
        try:
            committed = self.write.find_committed(ctx, intent)
            if committed is None or metadata_of_retired(committed):
                return
            ledger, instance = self.ledger, self.context.instance
            facts = committed_facts(committed, incarnation_of(instance, ledger, ledger.identity_of(committed.table)))
            self._record_in_order(facts, committed.table)
        except LanceError as error:  # the error of the write itself is raised
            self.context.log.warning(f"{self.ledger.label}: the result of the failed write is unknown: {error}")
            return
        self.context.log.warning(
            f"{self.ledger.label}: the write failed after it had committed version {committed.version}; a retry "
            "reports this version and does not launch it again"
        )

    def _audit_results(self, audit: Audit | None, committed: Committed) -> list[dg.AssetCheckResult]:
        if audit is None:
            return []
        if committed.already_committed:
            return Audit(audit.checks).asset_check_results(
                f"Not evaluated again: already committed as version {committed.version}.", committed.version
            )
        for warning in audit.warnings():
            self.context.log.warning(f"{self.ledger.label}: version {committed.version} was published; {warning}")
        return audit.asset_check_results("Not evaluated: nothing was written.", committed.version)

    def _intent_of(self, partition: str | None) -> str:
        key = write_key(self.ledger, self.write)
        if self.write.once_per == "partition" and partition is not None:
            return partition_intent(key, partition)
        return run_intent(self.context.instance, self.context.run, key, partition) + self.intent_suffix

    def _record_intermediate_versions(self, version_before: int, committed: Committed) -> None:
        """Record the versions of this run that precede the last one."""
        incarnation = incarnation_of(self.context.instance, self.ledger, self.ledger.identity_of(committed.table))
        for info in committed.table.versions(since=version_before):
            if info.version < committed.version and info.properties.get(RUN_ID) == self.context.run.run_id:
                table = committed.table.at(info.version)
                facts = discovered_facts(table, info, incarnation)
                self._record_in_order(facts, table)
                # Checks that read rows are evaluated on the last version only.
                evaluate_in_run(self.context, self.ledger, self._manifest_checks, table, facts.partition)

    def _record_in_order(self, facts: VersionFacts, table: Table) -> RecordingState:
        """Record a version, and evaluate the checks on the earlier ones of other writers that were recorded first."""
        recording = record_in_run(self.context, self.ledger, facts, table)
        for earlier, table_at in recording.earlier:
            evaluate_in_run(self.context, self.ledger, self._manifest_checks, table_at, earlier.partition)
        return recording.state

    @property
    def _manifest_checks(self) -> list[Check]:
        return [check for check in self.checks if not check.reads_data]

    def _should_evaluate_checks(self, facts: VersionFacts, state: RecordingState) -> bool:
        """Return whether the checks apply to this version.

        They do not apply to an old version that another run committed: Dagster would show their result as the current
        one.
        """
        if state is RecordingState.MISSING or facts.run_id == self.context.run.run_id:
            return True
        return self.ledger.open().version == facts.version

    def _record(
        self, committed: Committed, audit_results: list[dg.AssetCheckResult], reported: Mapping[str, dg.MetadataValue]
    ) -> dg.MaterializeResult[None]:
        """Record the committed version on the ledger, evaluate the checks, and return the result of the step."""
        context, ledger = self.context, self.ledger
        if not committed.attempts and not committed.already_committed:
            context.log.info(f"{ledger.label}: nothing to write; the table stays at version {committed.version}")
            metadata = {
                **reported,
                "lance/rows_added": dg.MetadataValue.int(0),
                **self.write.metadata_of(committed.table),
            }
            return _result_without_partition(committed.version, metadata, audit_results)
        if retired := metadata_of_retired(committed):
            context.log.warning(f"{ledger.label}: {retired['lance/gone'].value}. There is no partition to record")
            return _result_without_partition(committed.version, retired, audit_results)
        facts = committed_facts(
            committed, incarnation_of(context.instance, ledger, ledger.identity_of(committed.table))
        )
        run_is_known = facts.run_id is not None and context.instance.has_run(facts.run_id)
        state = self._record_in_order(facts, committed.table)
        if self.checks and state is not RecordingState.TAKEN and self._should_evaluate_checks(facts, state):
            evaluate_in_run(context, ledger, self.checks, committed.table, facts.partition)
        # If the partition key is taken by another version, this version has no partition.
        partition = {} if state is RecordingState.TAKEN else {"lance/partition": dg.MetadataValue.text(facts.partition)}
        if committed.already_committed:
            context.log.info(f"{ledger.label}: already committed as version {facts.version}; nothing was written now")
        return dg.MaterializeResult(
            metadata={
                **reported,
                **metadata_of(
                    facts,
                    run_is_known=run_is_known,
                    with_diagram=True,
                    descriptions=ledger.column_descriptions,
                    key=ledger.key,
                ),
                **partition,
                **self.write.metadata_of(committed.table),
                "lance/landed_before": dg.MetadataValue.bool(committed.already_committed),
            },
            data_version=dg.DataVersion(facts.data_version),
            check_results=audit_results,
        )


def _result_without_partition(
    version: int, metadata: Mapping[str, dg.MetadataValue], audit_results: list[dg.AssetCheckResult]
) -> dg.MaterializeResult[None]:
    version_metadata = {"lance/version": dg.MetadataValue.int(version), **metadata}
    return dg.MaterializeResult(metadata=version_metadata, check_results=audit_results)


def _materialization(key: dg.AssetKey, partition: str, result: dg.MaterializeResult[None]) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(asset_key=key, partition=partition, metadata=result.metadata)


def _partition_keys_of(context: dg.AssetExecutionContext, write: Write) -> Sequence[str]:
    """Return the partitions of the run; none for a write without partitions."""
    if write.partitions is None:
        return ()
    keys = step_keys(context) if context.has_partition_key or context.has_partition_key_range else []
    if not keys or (len(keys) > 1 and write.backfill_policy is None):
        raise InvalidInput(
            f"{write.name} commits one version per partition, but this run names no single partition; launch it for "
            "one partition, or as a backfill with one run per partition, or declare the write with "
            "backfill_policy=dagster.BackfillPolicy.single_run()"
        )
    return keys
