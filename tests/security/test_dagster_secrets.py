"""Dagster never stores or shows a secret: not in definitions sent to the web server, pickled or printed, nor in
failures. The database, pages and files of a deployment are tested in `lance_assets/test_deployment.py`."""

import pickle
from collections.abc import Callable

import dagster as dg
import pytest
from dagster_shared.serdes import serialize_value

from lance_assets import LanceResource, LanceTable, SparkAppend, SparkSessionResource, lance_table
from lance_assets.failures.error_translation import failure_of
from lance_core import InvalidInput, StorageError

CANARY, NAME = "canary-6e02", "TEST_CANARY"


def declare_table(secret: str) -> LanceTable:
    options = {"aws_access_key_id": "an-id", "aws_secret_access_key": secret, "aws_region": "x"}
    write = SparkAppend("clicks_append", lambda spark, ctx: spark.range(1))
    return lance_table("clicks", uri="s3://bucket/clicks.lance", storage_options=options, writes=[write])


@pytest.mark.parametrize("secret", [f"env:{NAME}", dg.EnvVar(NAME)])
def test_definitions_are_sent_without_secrets(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, CANARY)
    table = declare_table(secret)
    spark = SparkSessionResource(
        remote=dg.EnvVar(NAME), conf={"spark.hadoop.fs.s3a.secret.key": dg.EnvVar(NAME), "spark.x": "shown"}
    )
    lance = LanceResource(storage_options={"token": dg.EnvVar(NAME)}, manifest_store=dg.EnvVar(NAME))
    job = dg.define_asset_job("job", [table.write_key("clicks_append")])
    defs = dg.Definitions.merge(table.defs, dg.Definitions(jobs=[job], resources={"spark": spark, "lance": lance}))
    repository = defs.get_repository_def()
    snapshots = [each.get_job_snapshot() for each in repository.get_all_jobs()]
    texts = [
        *map(serialize_value, snapshots),
        repr(defs.resolve_all_asset_specs()),
        repr((table, table.ledger, spark, lance)),
        pickle.dumps((table.ledger, table.ledger.storage)).decode("latin1"),
        str(failure_of(StorageError("the store said no"), table.ledger).metadata),
    ]
    assert len(texts) > 5
    assert all(texts)
    assert any("clicks_append" in text for text in texts)
    for text in texts:
        assert CANARY not in text
    assert str(table.access()["storage_options"]["aws_secret_access_key"]) in (CANARY, f"env:{NAME}")


REFUSED: list[Callable[[], object]] = [
    lambda: declare_table(CANARY),
    lambda: SparkSessionResource(remote=f"sc://host/;token={CANARY}"),
    lambda: SparkSessionResource(conf={"spark.hadoop.fs.s3a.secret.key": CANARY}),
    lambda: LanceResource(storage_options={"account_key": CANARY}),
    lambda: lance_table("t", uri=f"s3://key:{CANARY}@bucket/t"),
]


@pytest.mark.parametrize("declare", REFUSED)
def test_secrets_that_are_written_out_are_refused_and_not_repeated(declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare()
    assert CANARY not in str(refused.value)
