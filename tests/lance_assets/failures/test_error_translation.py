"""Every error of the core has its treatment: which are tried again, and what a user is told."""

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

STORAGE = LanceResource(storage_options={"custom_header": "canary-5f1d"})
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
def test_the_failure_names_the_table_and_the_details(
    error: LanceError, is_retried: bool, details: dict[str, object]
) -> None:
    failure = failure_of(error, LEDGER)
    assert failure.allow_retries is is_retried
    assert failure.description is not None
    assert failure.description.startswith("lake/orders: ")
    assert str(error) in failure.description
    shown = {name: value.value for name, value in failure.metadata.items()}
    assert shown["lance/table"] == "lake/orders"
    assert details.items() <= shown.items()
    assert "canary-5f1d" not in f"{failure.description}{shown}{LEDGER!r}"


def test_every_error_of_the_core_has_a_treatment_of_its_own_or_of_its_kind() -> None:
    kinds = [kind for kind in vars(lance_core).values() if isinstance(kind, type) and issubclass(kind, LanceError)]
    general = TREATMENTS[LanceError]
    for kind in kinds:
        found = next(treatment for known, treatment in TREATMENTS.items() if issubclass(kind, known))
        assert found is not general or kind in (LanceError, lance_core.ConflictError), kind


@pytest.mark.parametrize("error", [LOST_RACE, UNKNOWN])
def test_what_may_end_otherwise_is_tried_again_a_few_times(error: LanceError) -> None:
    for number, wait in enumerate(RETRY_DELAYS_S):
        with pytest.raises(dg.RetryRequested) as asked, translate_errors(LEDGER, retry_number=number):
            raise error
        assert (asked.value.seconds_to_wait, asked.value.max_retries) == (wait, len(RETRY_DELAYS_S))
        assert isinstance(asked.value.__cause__, dg.Failure)
    with pytest.raises(dg.Failure, match="lake/orders"), translate_errors(LEDGER, retry_number=len(RETRY_DELAYS_S)):
        raise error


def test_what_cannot_end_otherwise_fails_at_once() -> None:
    with pytest.raises(dg.Failure) as failed, translate_errors(LEDGER, retry_number=0):
        raise MISFIT
    assert failed.value.allow_retries is False
    assert failed.value.__cause__ is MISFIT


def test_errors_of_others_pass() -> None:
    with pytest.raises(ZeroDivisionError), translate_errors(LEDGER, retry_number=0):
        raise ZeroDivisionError


MADE_BY = {"dagster.run_id": "8d9c2f1e", "dagster.asset_key": "lake/purge", "dagster.partition": "2026-01-02"}
MAKERS = [
    (MADE_BY, "Version 2 was written by run 8d9c2f1e of lake/purge, partition 2026-01-02."),
    ({"dagster.run_id": "8d9c2f1e"}, "Version 2 was written by run 8d9c2f1e."),
    ({"dagster.run_id": "no run\n<b>"}, "Version 2 does not name the Dagster run that wrote it."),
    ({}, "Version 2 does not name the Dagster run that wrote it."),
]


@pytest.mark.parametrize(("properties", "said"), MAKERS)
def test_a_conflict_names_the_run_of_the_other_writer(tmp_path: Path, properties: dict[str, str], said: str) -> None:
    ledger = Ledger("orders", ("lake",), str(tmp_path / "orders.lance"))
    Table.create(ledger.uri, pa.table({"id": [1]})).delete("id = 1", properties=properties)
    conflict = IncompatibleConflict("in the way", ours="Update", theirs="Delete", version=2, rule="same_rows")
    failure = failure_of(conflict, ledger)
    assert failure.description is not None
    assert failure.description.endswith(said)
    asset = failure.metadata.get("lance/their_asset")
    assert (asset and asset.value) == properties.get("dagster.asset_key")
    gone = IncompatibleConflict("in the way", ours="Update", theirs="Delete", version=9, rule="same_rows")
    assert str(failure_of(gone, ledger).description).endswith("in the way")


def test_an_asset_that_returns_a_frame_names_it_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders.lance")
    Table.create(uri, pa.table({"id": [1]})).delete("id = 1", properties=MADE_BY)
    conflict = IncompatibleConflict("in the way", ours="Update", theirs="Delete", version=2, rule="same_rows")
    target = Target("orders", dg.AssetKey("orders"), uri, LanceResource().access(), "overwrite")
    assert str(failure_of(conflict, target).description).endswith(MAKERS[0][1])


def test_the_place_of_a_frame_tells_no_secret() -> None:
    target = Target("orders", dg.AssetKey("orders"), "s3://key:canary-5f1d@lake/orders", STORAGE.access(), "append")
    shown = failure_of(StorageError("the store said no"), target).metadata
    assert shown["dagster/uri"].value == "s3://lake/orders"
    assert "canary-5f1d" not in repr(target).replace(target.uri, "")


def test_a_write_that_meets_another_names_it_in_its_failure(tmp_path: Path, spark: SparkSession) -> None:
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
