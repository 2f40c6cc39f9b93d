"""Commands on S3: a table in a bucket with inputs in the same bucket, and secrets from the environment."""

from collections.abc import Iterator

import pytest

from lance_core import Table
from tests.lance_assets.cli.conftest import FROM_RUN, RUN, Shell, reading, rows
from tests.lance_core.storage.buckets import Bucket
from tests.lance_core.storage.object_servers import s3


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3() as server:
        yield server.bucket()


def test_every_command(bucket: Bucket, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(bucket.options)
    raw = Table.create(f"{bucket.uri}/raw.lance", rows(1), storage_options=options)
    orders = Table.create(f"{bucket.uri}/orders@home.lance", rows(1), storage_options=options)
    orders = orders.append(rows(2), properties={**FROM_RUN, **reading(raw)}).table
    monkeypatch.setenv("THE_KEY", options["aws_secret_access_key"])
    monkeypatch.setenv("THE_ID", options["aws_access_key_id"])
    access = [
        "--storage-option-from",
        "aws_secret_access_key=THE_KEY",
        "--storage-option-from",
        "aws_access_key_id=THE_ID",
    ]
    for name in ("aws_endpoint", "aws_region", "allow_http"):
        access += ["--storage-option", f"{name}={options[name]}"]
    outputs = {
        "history": shell("history", orders.uri, *access),
        "show": shell("show", f"{orders.uri}@2", *access),
        "diff": shell("diff", f"{orders.uri}@1", "@2", *access),
        "lineage": shell("lineage", f"{orders.uri}@2", *access),
        "run": shell("run", RUN, orders.uri, *access),
        "doctor": shell("doctor", orders.uri, *access),
    }
    assert {name: (answer.code, answer.err) for name, answer in outputs.items()} == {
        name: (int(name == "doctor"), "") for name in outputs
    }
    assert f"└─ {raw.uri}@1  create (Overwrite)" in outputs["lineage"].out
    assert f"    read {raw.uri}@1" in outputs["run"].out
    assert "fragments  + 1 fragment, 1 row" in outputs["diff"].out
    assert all(options["aws_secret_access_key"] not in answer.out for answer in outputs.values())
    refused = shell("show", f"{orders.uri}@9", *access)
    assert (refused.code, refused.out) == (2, "")
    assert "has no version 9; it has 1-2" in refused.err
