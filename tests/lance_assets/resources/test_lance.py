"""How tables are reached: what is looked up and when, and that no secret is written out."""

import os

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceResource, SparkSessionResource
from lance_core import InvalidInput, Table

CANARY = "canary-5d20"


def test_secrets_are_looked_up_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"aws_secret_access_key": dg.EnvVar("TEST_KEY"), "aws_session_token": "env:TEST_TOKEN", "region": "x"}
    resource = LanceResource(storage_options=options, manifest_store=dg.EnvVar("TEST_STORE"))
    with pytest.raises(InvalidInput, match="'aws_secret_access_key' comes from the environment variable TEST_KEY"):
        resource.access()
    monkeypatch.setenv("TEST_KEY", CANARY)
    monkeypatch.setenv("TEST_STORE", f"postgresql://user:{CANARY}@host/db")
    access = resource.access("dev")
    assert access["storage_options"]["aws_secret_access_key"] == CANARY
    assert access["storage_options"]["aws_session_token"] == "env:TEST_TOKEN"
    assert access["manifest_store"] == f"postgresql://user:{CANARY}@host/db"
    assert access["branch"] == "dev"
    assert CANARY not in repr(resource)

    @dg.asset
    def used(lance: LanceResource) -> None:
        assert lance.access()["storage_options"]["aws_secret_access_key"] == CANARY
        assert CANARY not in repr(lance)

    assert dg.materialize([used], resources={"lance": resource}).success


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"storage_options": {"aws_secret_access_key": CANARY}}, "'aws_secret_access_key' is a literal secret"),
        ({"storage_options": {"account_key": CANARY}}, "'account_key' is a literal secret"),
        ({"manifest_store": f"postgresql://user:{CANARY}@host/db"}, "manifest_store= of LanceResource contains"),
        ({"root": f"s3://user:{CANARY}@bucket"}, "root= of LanceResource contains a password"),
    ],
)
def test_what_is_written_out_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        LanceResource(**given)
    assert said in str(refused.value)
    assert CANARY not in str(refused.value)


def test_what_the_code_takes_out_of_the_environment_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TAKEN", CANARY)
    taken = os.environ["TEST_TAKEN"]
    with pytest.raises(InvalidInput, match="'account_key' is a literal secret"):
        LanceResource(storage_options={"account_key": taken})
    with pytest.raises(InvalidInput, match="looks like a secret"):
        SparkSessionResource(conf={"spark.hadoop.fs.s3a.secret.key": taken})


@pytest.mark.parametrize(
    ("root", "uri", "place"),
    [
        ("s3://lake/", "a/b.lance", "s3://lake/a/b.lance"),
        ("s3://lake", "gs://other/b.lance", "gs://other/b.lance"),
        ("/data", "b.lance", "/data/b.lance"),
        ("/data", "/b.lance", "/b.lance"),
        (None, "b.lance", "b.lance"),
    ],
)
def test_places_are_below_the_root(root: str | None, uri: str, place: str) -> None:
    assert LanceResource(root=root).resolve_uri(uri) == place


def test_an_asset_opens_tables_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("lake")
    resource = LanceResource(root=str(root))
    assert not resource.exists("t.lance")
    Table.create(root / "t.lance", pa.table({"id": [1]})).append(pa.table({"id": [2]}))
    assert resource.exists("t.lance")
    assert resource.open("t.lance", version=1).count_rows() == 1
