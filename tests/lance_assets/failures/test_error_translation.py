"""Error translation: the errors of the core that Dagster retries, and the failures that users see."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_core
from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.failures.error_translation import RETRY_DELAYS_S, TREATMENTS, failure_of, translate_errors
from lance_assets.io_manager.manager import Target
from lance_assets.ledger.ledger import Ledger
from lance_assets.resources.lance import LanceResource
from lance_core import (
    CommitUndecided,
    Corrupt,
    IncompatibleConflict,
    LanceError,
    RetryableConflict,
    SchemaMismatch,
    StorageError,
    Table,
)
from tests.lance_assets.instances import run

STORAGE = LanceResource(storage_options={"user_agent": "canary-5f1d"})
LEDGER = Ledger("orders", ("lake",), "/data/orders.lance", STORAGE)
LOST_RACE = RetryableConflict("lost the race", ours="Append", theirs="Append", version=7, rule="exhausted")
REPLACED = IncompatibleConflict("replaced", ours="Append", theirs="Overwrite", version=8, rule="incompatible")
UNKNOWN = CommitUndecided("no answer", uuid="u-1", version=9)
MISFIT = SchemaMismatch("column city", column="city", expected="string", got="int64")
DAMAGED = Corrupt("is cut short", path="_versions/1.manifest", field="footer")

DETAILS = [
    (LOST_RACE, True, {"lance/version": 7, "lance/rule": "exhausted", "lance/theirs": "Append"}),
    (REPLACED, False, {"lance/version": 8, "lance/rule": "incompatible", "lance/theirs": "Overwrite"}),
    (UNKNOWN, True, {"lance/version": 9, "lance/transaction": "u-1"}),
    (StorageError("the disk is full"), True, {}),
    (MISFIT, False, {"lance/column": "city", "lance/expected": "string", "lance/got": "int64"}),
    (DAMAGED, False, {"lance/file": "_versions/1.manifest", "lance/field": "footer"}),
]


@pytest.mark.parametrize(("error", "is_retried", "details"), DETAILS)
def test_failure_names_the_table_and_the_details(
    error: LanceError, is_retried: bool, details: dict[str, object]
) -> None:
    failure = failure_of(error, LEDGER)
    assert failure.allow_retries is is_retried
    assert failure.description is not None
    assert failure.description.startswith("lake/orders: ")
    assert str(error) in failure.description
    metadata = {name: value.value for name, value in failure.metadata.items()}
    assert metadata["lance/table"] == "lake/orders"
    assert details.items() <= metadata.items()
    assert "canary-5f1d" not in f"{failure.description}{metadata}{LEDGER!r}"


def test_every_core_error_is_translated() -> None:
    kinds = [kind for kind in vars(lance_core).values() if isinstance(kind, type) and issubclass(kind, LanceError)]
    general = TREATMENTS[LanceError]
    for kind in kinds:
        treatment_of_class = next(treatment for known, treatment in TREATMENTS.items() if issubclass(kind, known))
        assert treatment_of_class is not general or kind in (LanceError, lance_core.ConflictError), kind


@pytest.mark.parametrize("error", [LOST_RACE, UNKNOWN])
def test_retryable_errors_are_retried(error: LanceError) -> None:
    for number, wait in enumerate(RETRY_DELAYS_S):
        with pytest.raises(dg.RetryRequested) as raised, translate_errors(LEDGER, retry_number=number):
            raise error
        assert (raised.value.seconds_to_wait, raised.value.max_retries) == (wait, len(RETRY_DELAYS_S))
        assert isinstance(raised.value.__cause__, dg.Failure)
    with pytest.raises(dg.Failure, match="lake/orders"), translate_errors(LEDGER, retry_number=len(RETRY_DELAYS_S)):
        raise error


def test_permanent_errors_fail_immediately() -> None:
    with pytest.raises(dg.Failure) as failed, translate_errors(LEDGER, retry_number=0):
        raise MISFIT
    assert failed.value.allow_retries is False
    assert failed.value.__cause__ is MISFIT


def test_other_errors_propagate() -> None:
    with pytest.raises(ZeroDivisionError), translate_errors(LEDGER, retry_number=0):
        raise ZeroDivisionError


MADE_BY = {"dagster.run_id": "8d9c2f1e", "dagster.asset_key": "lake/purge", "dagster.partition": "2026-01-02"}
MAKERS = [
    (MADE_BY, "Version 2 was written by run 8d9c2f1e of lake/purge, partition 2026-01-02."),
    ({"dagster.run_id": "8d9c2f1e"}, "Version 2 was written by run 8d9c2f1e."),
    ({"dagster.run_id": "no run\n<b>"}, "Version 2 does not name the Dagster run that wrote it."),
    ({}, "Version 2 does not name the Dagster run that wrote it."),
]


@pytest.mark.parametrize(("properties", "message"), MAKERS)
def test_conflict_names_the_run_of_the_other_writer(tmp_path: Path, properties: dict[str, str], message: str) -> None:
    ledger = Ledger("orders", ("lake",), str(tmp_path / "orders.lance"))
    Table.create(ledger.uri, pa.table({"id": [1]})).delete("id = 1", properties=properties)
    conflict = IncompatibleConflict("conflicts", ours="Update", theirs="Delete", version=2, rule="same_rows")
    failure = failure_of(conflict, ledger)
    assert failure.description is not None
    assert failure.description.endswith(message)
    asset = failure.metadata.get("lance/their_asset")
    assert (asset and asset.value) == properties.get("dagster.asset_key")
    incompatible = IncompatibleConflict("conflicts", ours="Update", theirs="Delete", version=9, rule="same_rows")
    assert str(failure_of(incompatible, ledger).description).endswith("conflicts")


def test_conflict_of_the_io_manager_names_the_run(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders.lance")
    Table.create(uri, pa.table({"id": [1]})).delete("id = 1", properties=MADE_BY)
    conflict = IncompatibleConflict("conflicts", ours="Update", theirs="Delete", version=2, rule="same_rows")
    target = Target("orders", dg.AssetKey("orders"), uri, LanceResource().access(), "overwrite")
    assert str(failure_of(conflict, target).description).endswith(MAKERS[0][1])


def test_location_in_a_failure_has_no_secret() -> None:
    target = Target("orders", dg.AssetKey("orders"), "s3://key:canary-5f1d@lake/orders", STORAGE.access(), "append")
    metadata = failure_of(StorageError("the store said no"), target).metadata
    assert metadata["dagster/uri"].value == "s3://lake/orders"
    assert "canary-5f1d" not in repr(target).replace(target.uri, "")


def test_failure_of_a_conflicting_write_names_the_other_run(tmp_path: Path, spark: SparkSession) -> None:
    uri = str(tmp_path / "orders.lance")
    Table.create(uri, pa.table({"id": [1]}))

    def overtaken(session: SparkSession, ctx: WriteContext) -> DataFrame:
        def overtake(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            Table.open(uri).overwrite(pa.table({"id": [7]}), properties=MADE_BY)
            yield from batches

        return session.range(0, 3, 1, 1).mapInArrow(overtake, "id long")

    table = lance_table("orders", uri=uri, writes=[SparkAppend("orders_append", overtaken)])
    with dg.DagsterInstance.ephemeral() as instance:
        ran = run(table, "orders_append", instance, SparkSessionResource(), raise_on_error=False)
    (failed,) = [event for event in ran.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    assert data.description is not None
    assert data.description.endswith(MAKERS[0][1])
    assert data.metadata["lance/their_run"] == dg.MetadataValue.dagster_run("8d9c2f1e")
    assert Table.open(uri).to_table()["id"].to_pylist() == [7]
