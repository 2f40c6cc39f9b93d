"""Databases of manifest stores, each started once on loopback or a socket and stopped by its process id: a SQLite file,
the DynamoDB emulator of moto, and a PostgreSQL server from a wheel.
"""

import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from lance_core.storage.factory import open_manifest_store
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from tests.lance_core.storage.manifest_stores.in_memory import InMemoryManifestStore
from tests.lance_core.storage.s3_process import s3_process
from tests.postgres import postgres_server

KEYS = {"aws_access_key_id": "AKIDTESTS", "aws_secret_access_key": "secret-of-tests", "aws_region": "eu-west-1"}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def aws(monkeypatch_session: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Storage options of S3 and DynamoDB, both empty."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with s3_process() as objects:
        yield {**KEYS, "aws_endpoint": objects.endpoint, "dynamodb_endpoint": endpoint, "allow_http": "true"}
    server.stop()


@pytest.fixture(scope="session")
def monkeypatch_session() -> Iterator[pytest.MonkeyPatch]:
    """A patched environment in which no credentials of the machine reach a request."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "DYNAMODB_"))]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/nowhere")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        yield patch


@pytest.fixture
def dynamodb_table(aws: dict[str, str]) -> str:
    """The name of a new DynamoDB table with the keys of Lance."""
    name = f"commits-{next(_numbers)}"
    client = get_session().create_client(
        "dynamodb",
        endpoint_url=aws["dynamodb_endpoint"],
        region_name=aws["aws_region"],
        aws_access_key_id=aws["aws_access_key_id"],
        aws_secret_access_key=aws["aws_secret_access_key"],
    )
    client.create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": "base_uri", "KeyType": "HASH"},
            {"AttributeName": "version", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "base_uri", "AttributeType": "S"},
            {"AttributeName": "version", "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server without the database name."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """The URL of a new database without tables."""
    name = f"manifests_{next(_numbers)}"
    with psycopg.connect(postgres.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.format(database=name)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "dynamodb"])
def manifest_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A value of `manifest_store=`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/manifests.db"
    if request.param == "memory":
        return "memory"
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"dynamodb://{request.getfixturevalue('dynamodb_table')}"


@pytest.fixture
def options(manifest_store: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """The storage options that reach the manifest store."""
    return dict(request.getfixturevalue("aws")) if manifest_store.startswith("dynamodb") else {}


@pytest.fixture
def manifests(manifest_store: str, options: dict[str, str]) -> ManifestStore:
    opened = InMemoryManifestStore() if manifest_store == "memory" else open_manifest_store(manifest_store, options)
    assert opened is not None
    return opened
