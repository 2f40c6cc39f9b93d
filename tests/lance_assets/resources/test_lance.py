"""Lance resource: resolution of locations and secrets, and that no literal secret is accepted."""

import os

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceResource, SparkSessionResource
from lance_core import InvalidInput, Table

CANARY = "canary-5d20"


def test_secrets_are_resolved_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("options", "message"),
    [
        ({"storage_options": {"aws_secret_access_key": CANARY}}, "'aws_secret_access_key' is a literal secret"),
        ({"storage_options": {"account_key": CANARY}}, "'account_key' is a literal secret"),
        ({"manifest_store": f"postgresql://user:{CANARY}@host/db"}, "manifest_store= of LanceResource contains"),
        ({"root": f"s3://user:{CANARY}@bucket"}, "root= of LanceResource contains a secret"),
    ],
)
def test_literal_secrets_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        LanceResource(**options)
    assert message in str(refused.value)
    assert CANARY not in str(refused.value)


def test_secrets_read_by_user_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TAKEN", CANARY)
    taken = os.environ["TEST_TAKEN"]
    with pytest.raises(InvalidInput, match="'account_key' is a literal secret"):
        LanceResource(storage_options={"account_key": taken})
    with pytest.raises(InvalidInput, match="looks like a secret"):
        SparkSessionResource(conf={"spark.hadoop.fs.s3a.secret.key": taken})


@pytest.mark.parametrize(
    ("root", "uri", "location"),
    [
        ("s3://lake/", "a/b.lance", "s3://lake/a/b.lance"),
        ("s3://lake", "gs://other/b.lance", "gs://other/b.lance"),
        ("/data", "b.lance", "/data/b.lance"),
        ("/data", "/b.lance", "/b.lance"),
        (None, "b.lance", "b.lance"),
    ],
)
def test_locations_are_below_the_root(root: str | None, uri: str, location: str) -> None:
    assert LanceResource(root=root).resolve_uri(uri) == location


def test_asset_opens_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("lake")
    resource = LanceResource(root=str(root))
    assert not resource.exists("t.lance")
    Table.create(root / "t.lance", pa.table({"id": [1]})).append(pa.table({"id": [2]}))
    assert resource.exists("t.lance")
    assert resource.open("t.lance", version=1).count_rows() == 1
