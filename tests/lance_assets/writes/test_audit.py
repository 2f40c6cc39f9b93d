"""Audited writes: the step, its asset checks, the ledger and the table after a passed or failed audit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import (
    LanceTable,
    SparkAppend,
    SparkCompact,
    SparkDelete,
    SparkIngest,
    SparkMapColumns,
    SparkMergeColumns,
    SparkOverwrite,
    SparkSessionResource,
    SparkUpdate,
    SparkUpsert,
    WriteContext,
    lance_table,
)
from lance_assets.checks import Check, CheckContext, CheckResult, Severity
from lance_assets.failures.checks_failed import ChecksFailed
from lance_assets.writes import Write
from lance_assets.writes.audit import Audit, check_specs
from lance_core import InvalidInput, NotFound, StorageError, Table
from tests.lance_assets.instances import events, metadata_values, partitions, run

WRONG = "a check of mine has found something"


@dataclass(frozen=True, slots=True)
class RowsAtMost(Check):
    most: int

    def judge(self, context: CheckContext) -> CheckResult:
        count, before = context.table.count_rows(), context.parent.count_rows() if context.parent else 0
        metadata = {"rows": dg.MetadataValue.int(count), "before": dg.MetadataValue.int(before)}
        return CheckResult(count <= self.most, f"{count} rows, where {self.most} are allowed", metadata)


@dataclass(frozen=True, slots=True)
class CallableCheck(Check):
    """Check that calls a function."""

    judges: Callable[[CheckContext], CheckResult]

    def judge(self, context: CheckContext) -> CheckResult:
        return self.judges(context)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def resource(spark: SparkSession) -> SparkSessionResource:
    return SparkSessionResource()


def ten(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 10, 1, 1)


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": batch["id"]})


def declare_table(folder: Path, *writes: Write) -> LanceTable:
    return lance_table("t", uri=str(folder / "t.lance"), writes=writes)


def check_evaluations(
    instance: dg.DagsterInstance, table: LanceTable, write: str, name: str
) -> list[dg.AssetCheckEvaluation]:
    """Return the evaluations of one check of the asset, oldest first."""
    key = dg.AssetCheckKey(table.write_key(write), name)
    evaluations = []
    for event_type in (dg.DagsterEventType.ASSET_CHECK_EVALUATION,):
        for run_id in [record.dagster_run.run_id for record in instance.get_run_records(ascending=True)]:
            for entry in instance.all_logs(run_id, of_type=event_type):
                assert entry.dagster_event is not None
                evaluation = entry.dagster_event.event_specific_data
                assert isinstance(evaluation, dg.AssetCheckEvaluation)
                if evaluation.asset_check_key == key:
                    evaluations.append(evaluation)
    return evaluations


def failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, object]]:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    failure_data = event.step_failure_data.user_failure_data
    assert failure_data is not None
    return failure_data.description or "", {name: value.value for name, value in failure_data.metadata.items()}


def test_passing_audits_publish_and_failing_ones_do_not(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    few = RowsAtMost("few", most=15)
    none = RowsAtMost("none_at_all", most=5, severity=Severity.WARN)
    patient = dg.RetryPolicy(max_retries=2)  # a retry is for errors that another attempt can resolve
    more = SparkAppend("more", ten, audit=[few, none], retry_policy=patient)
    table = declare_table(tmp_path, more, SparkDelete("purge", "id < 8", audit=[few]))
    passed = run(table, "more", instance, resource)
    head = Table.open(table.uri)
    assert (head.version, head.count_rows()) == (1, 10)
    (few_said,) = check_evaluations(instance, table, "more", "few")
    assert (few_said.passed, few_said.description) == (True, "10 rows, where 15 are allowed")
    assert {name: value.value for name, value in few_said.metadata.items()} == {
        "lance/version": 1,
        "rows": 10,
        "before": 0,
    }
    (none_said,) = check_evaluations(instance, table, "more", "none_at_all")
    assert (none_said.passed, none_said.severity) == (False, dg.AssetCheckSeverity.WARN)
    warned = [entry.user_message for entry in instance.all_logs(passed.run_id) if entry.level == 30]
    assert warned == ["t: version 1 was published; check none_at_all: 10 rows, where 5 are allowed"]

    refused = run(table, "more", instance, resource, raise_on_error=False)
    assert not refused.success
    assert Table.open(table.uri).version == lance.dataset(table.uri).version == 1
    assert len(events(instance, table.key)) == len(partitions(instance, table)) == 1
    assert len(events(instance, table.write_key("more"))) == 1
    assert not [event for event in refused.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    description, metadata = failure(refused)
    number = int(str(metadata["lance/detached_version"]))
    assert description.startswith("t: an audit refused the change, and nothing was published. ")
    assert "check few: 20 rows, where 15 are allowed" in description
    assert "none_at_all" not in description, "a warning is told as what refused it"
    assert f"Table.open('{table.uri}', version={number})" in description
    assert metadata | {"lance/open": "", "lance/show": ""} == {
        "lance/table": "t",
        "dagster/uri": table.uri,
        "lance/error": "AuditFailed",
        "lance/check/few": "20 rows, where 15 are allowed",
        "lance/check/few/rows": 20,
        "lance/check/few/before": 10,
        "lance/detached_version": str(number),
        "lance/open": "",
        "lance/show": "",
    }
    assert metadata["lance/show"] == f"lance-assets show {table.uri}@{number}"
    assert metadata["lance/open"] == f"Table.open('{table.uri}', version={number})"
    left = Table.open(table.uri, version=number)
    assert left.count_rows() == lance.dataset(table.uri, version=number).count_rows() == 20
    made_by = left.transaction()
    assert made_by is not None
    assert made_by.properties["dagster.run_id"] == refused.run_id
    *_, few_said = check_evaluations(instance, table, "more", "few")
    assert (few_said.passed, few_said.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert few_said.metadata["lance/detached_version"].value == str(number)
    assert len(check_evaluations(instance, table, "more", "none_at_all")) == 2

    run(table, "purge", instance, resource)
    again = run(table, "more", instance, resource, tags=retry_tags(refused))
    head = Table.open(table.uri)
    assert (head.version, head.count_rows(), again.success) == (3, 12, True)
    assert head.version_info().properties["dagster.run_id"] == again.run_id
    *_, (run_id, event) = events(instance, table.key)
    assert (run_id, event.partition, metadata_values(event)["lance/rows_added"]) == (again.run_id, "v0000000003", 10)
    assert check_evaluations(instance, table, "more", "few")[-1].passed


def retry_tags(failed: dg.ExecuteInProcessResult) -> dict[str, str]:
    return {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}


def test_metadata_of_repeated_and_empty_writes(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    days = dg.StaticPartitionsDefinition(["a", "b"])
    audited: list[int] = []

    def counted(context: CheckContext) -> CheckResult:
        audited.append(context.table.version)
        return CheckResult(True, "fine")

    audit = [CallableCheck("told", judges=counted)]
    once = SparkAppend("once", ten, audit=audit, partitions=days, once_per="partition")
    table = declare_table(tmp_path, once, SparkAppend("none", lambda spark, ctx: spark.range(0), audit=audit))
    for _ in range(2):
        run(table, "once", instance, resource, partition="a")
    run(table, "none", instance, resource)
    assert len(audited) == 1
    assert Table.open(table.uri).version == 1
    assert [each.description for each in check_evaluations(instance, table, "once", "told")] == [
        "fine",
        "Not evaluated again: already committed as version 1.",
    ]
    (evaluation,) = check_evaluations(instance, table, "none", "told")
    assert (evaluation.passed, evaluation.description) == (True, "Not evaluated: nothing was written.")


def test_every_write_is_audited(tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource) -> None:
    """No write publishes without its audit."""
    audit = [CallableCheck("never", judges=lambda context: CheckResult(False, WRONG))]
    landing = tmp_path / "rows.csv"
    landing.write_text("id\n77\n")
    table_schema = pa.schema([pa.field("twice", pa.int64())])
    writes: list[Write] = [
        SparkAppend("append", ten, audit=audit),
        SparkOverwrite("overwrite", ten, audit=audit),
        SparkOverwrite("slice", ten, "id < 10", audit=audit),
        SparkUpsert("upsert", ten, on="id", audit=audit),
        SparkIngest("ingest", str(landing), audit=audit),
        SparkDelete("delete", "id = 1", audit=audit),
        SparkUpdate("update", {"id": "id + 1"}, audit=audit),
        SparkMapColumns("mapped", twice, table_schema, ["id"], audit=audit),
        SparkMergeColumns(
            "merged", lambda spark, ctx: spark.range(0, 3).selectExpr("id", "id as x"), on="id", audit=audit
        ),
    ]
    table = declare_table(tmp_path, *writes)
    for name in ("append", "overwrite", "slice", "ingest"):  # these writes create the table
        refused = run(table, name, instance, resource, raise_on_error=False)
        assert WRONG in failure(refused)[0], name
        assert not Table.exists(table.uri), name
        with pytest.raises(NotFound):
            Table.open(table.uri)
    Table.create(table.uri, pa.table({"id": pa.array(range(5), pa.int64())}))
    for write in writes:
        refused = run(table, write.name, instance, resource, raise_on_error=False)
        assert WRONG in failure(refused)[0], write.name
        assert Table.open(table.uri).version == 1, write.name
        assert not check_evaluations(instance, table, write.name, "never")[-1].passed
    assert not events(instance, table.key)


def test_raising_checks_and_failing_stores(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}))

    def raising(error: Exception) -> Callable[[CheckContext], CheckResult]:
        def judge(context: CheckContext) -> CheckResult:
            raise error

        return judge

    audit = Audit([
        CallableCheck("broken", judges=raising(KeyError("x"))),
        CallableCheck("gone", judges=raising(NotFound("the file is gone"))),
        CallableCheck("warns", judges=raising(ValueError("y")), severity=Severity.WARN),
    ])  # fmt: skip
    with pytest.raises(ChecksFailed) as refused:
        audit(table, None)
    assert str(refused.value) == (
        "check broken: the check could not be evaluated: KeyError: 'x'; "
        "check gone: the check could not be evaluated: the file is gone"
    )
    assert list(audit.check_results) == ["broken", "gone", "warns"]
    assert audit.warnings()[-1] == "check warns: the check could not be evaluated: ValueError: y"
    with pytest.raises(StorageError):
        Audit([CallableCheck("store", judges=raising(StorageError("down")))])(table, None)


def test_audit_checks_are_declared_on_the_write() -> None:
    key = dg.AssetKey(["lake", "more"])
    (spec,) = check_specs([RowsAtMost("few", most=1)], key)
    assert (spec.key, spec.blocking) == (dg.AssetCheckKey(key, "few"), False)
    table = lance_table(
        "t", uri="/t", key_prefix="lake", writes=[SparkAppend("more", ten, audit=[RowsAtMost("few", most=1)])]
    )
    (write,) = [each for each in table.defs.assets or () if isinstance(each, dg.AssetsDefinition) and key in each.keys]
    assert [each.key for each in write.check_specs] == [dg.AssetCheckKey(key, "few")]


FEW = RowsAtMost("few", most=1)
BAD: list[tuple[str, Callable[[], object]]] = [
    ("SparkCompact('c'): audit= needs a write that commits one version", lambda: SparkCompact("c", audit=[FEW])),
    ("SparkAppend('a'): audit= must be a list of checks", lambda: SparkAppend("a", ten, audit=FEW)),  # type: ignore[arg-type]
    ("SparkAppend('a'): audit= must be a list of checks", lambda: SparkAppend("a", ten, audit=[ten])),  # type: ignore[list-item]
    ("SparkAppend('a'): audit= has two checks 'few'", lambda: SparkAppend("a", ten, audit=[FEW, FEW])),
]


@pytest.mark.parametrize(("message", "declare"), BAD, ids=range(len(BAD)))
def test_invalid_declarations(message: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare()
    assert message in str(refused.value)
