"""No secret is ever visible: twelve kinds of secrets are planted wherever a caller can pass one, and every failure
that can be provoked is checked. Errors and their causes, representations of objects, logs of all libraries at debug
level, and the files of a table contain none of them."""

import json
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lance_core import LanceError, Table
from lance_core.errors import CommitUndecided
from lance_core.storage.options import options_for
from lance_core.versions.location import Location, locate
from tests.lance_core.storage.buckets import SECRET
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import s3

ROWS = pa.table({"id": [1, 2, 3]})
CANARY = "canary-7f3a9c"
QUICK = {"client_max_retries": "0", "client_retry_timeout": "1s", "timeout": "2s", "connect_timeout": "1s"}


def secret(kind: str) -> str:
    """Return a secret in a form that clients accept, valid as base64 too."""
    return f"{CANARY}{kind}AAAA".replace("-", "0").ljust(40, "A")


@dataclass(frozen=True)
class SecretConfig:
    uri: str
    options: Mapping[str, str]
    """The text `{endpoint}` stands for the address of the server."""
    manifest_store: str | None = None


AWS = {"aws_region": "us-east-1", "aws_endpoint": "{endpoint}", "allow_http": "true"}
AZURE = {"azure_storage_endpoint": "{endpoint}", "azure_storage_account_name": "acc", "allow_http": "true"}
GOOGLE = {"google_base_url": "{endpoint}", "allow_http": "true"}


def google_key() -> str:
    """Return the key of a service account whose token address is the server itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    told = {"type": "service_account", "client_email": f"{secret('email')}@x", "private_key_id": secret("keyid")}
    return json.dumps({**told, "private_key": pem, "token_uri": "{endpoint}/token", "project_id": "p"})


SECRET_CONFIGS: dict[str, SecretConfig] = {
    "aws key": SecretConfig(
        "s3://bucket/t", {**AWS, "aws_access_key_id": secret("id"), "aws_secret_access_key": secret("key")}
    ),
    "aws token": SecretConfig(
        "s3://bucket/t",
        {**AWS, "aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_session_token": secret("token")},
    ),
    "azure account key": SecretConfig("az://container/t", {**AZURE, "azure_storage_account_key": secret("key")}),
    "azure sas": SecretConfig(
        "az://container/t", {**AZURE, "azure_storage_sas_key": f"?sv=2022-11-02&sig={secret('sas')}"}
    ),
    "azure token": SecretConfig("az://container/t", {**AZURE, "azure_storage_token": secret("token")}),
    "google key": SecretConfig("gs://bucket/t", {**GOOGLE, "google_service_account_key": google_key()}),
    "google token": SecretConfig("gs://bucket/t", {**GOOGLE, "google_storage_token": secret("token")}),
    "a broken google key": SecretConfig(
        "gs://bucket/t", {**GOOGLE, "google_service_account_key": f"{{{secret('half')}"}
    ),
    "user and password in a URI": SecretConfig(f"s3://me:{secret('word')}@bucket/t", AWS),
    "a password with a slash": SecretConfig(f"s3://me:a/b{secret('word')}@bucket/t", AWS),
    "a password with a question mark": SecretConfig(f"s3+ddb://me:a?b{secret('word')}@bucket/t", AWS),
    "a presigned URL": SecretConfig(f"https://host/t?X-Amz-Signature={secret('signature')}", {}),
    "a query in a URI": SecretConfig(f"s3://bucket/t?token={secret('query')}", AWS),
    "an endpoint with a password": SecretConfig(
        "s3://bucket/t", {**AWS, "aws_endpoint": f"http://me:{secret('word')}@host"}
    ),
    "an endpoint with a query": SecretConfig("az://c/t", {"azure_endpoint": f"https://host?sig={secret('sig')}"}),
    "a proxy": SecretConfig("s3://bucket/t", {**AWS, "proxy_url": f"http://me:{secret('proxy')}@proxy"}),
    "credentials of the machine": SecretConfig("az://container/t", AZURE),
    "an option that nobody knows": SecretConfig("s3://bucket/t", {**AWS, "aws_secret_acess_key": secret("typo")}),
    "a number that is none": SecretConfig("s3://bucket/t", {**AWS, "client_max_retries": secret("number")}),
    "a flag that is none": SecretConfig("s3://bucket/t", {**AWS, "aws_skip_signature": secret("flag")}),
    "a SQL database": SecretConfig("{place}/t", {}, f"postgresql+psycopg://me:{secret('word')}@127.0.0.1:1/db"),
    "a SQL database with its password in the query": SecretConfig(
        "{place}/t", {}, f"postgresql+psycopg://127.0.0.1:1/db?user=me&password={secret('word')}"
    ),
    "a SQL URL that is none": SecretConfig("{place}/t", {}, f"me:{secret('word')}@127.0.0.1/db"),
    "a SQL dialect that is none": SecretConfig("{place}/t", {}, f"nosuch://me:{secret('word')}@127.0.0.1/db"),
    "dynamodb": SecretConfig(
        "s3://bucket/t",
        {
            **AWS,
            "aws_access_key_id": secret("id"),
            "aws_secret_access_key": secret("key"),
            "aws_session_token": secret("token"),
            "dynamodb_endpoint": "{endpoint}",
        },
        "dynamodb://versions",
    ),
    "a dynamodb endpoint with a password": SecretConfig(
        "s3://bucket/t", {**AWS, "dynamodb_endpoint": f"http://me:{secret('word')}@host"}, "dynamodb://versions"
    ),
}


class _EchoHandler(BaseHTTPRequestHandler):
    """HTTP handler that rejects each request with a message that repeats the request."""

    def _any(self) -> None:
        heard = f"{self.path} {self.headers}"
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "google" in heard or "/storage/v1" in self.path or "/token" in self.path:
            body = json.dumps({"error": {"message": heard, "code": 403}}).encode()
        else:
            told = heard.replace("&", "&amp;").replace("<", "&lt;")
            body = f"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>{told}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""


@contextmanager
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EchoHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class LogCapture(logging.Handler):
    """Handler that captures the messages of all loggers at debug level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@pytest.fixture
def logs() -> Iterator[LogCapture]:
    root, handler = logging.getLogger(), LogCapture()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(before)
    root.removeHandler(handler)


def visible_text(error: BaseException) -> str:
    """Return everything that a person or a log can see of an error."""
    told = [repr(error), str(error), repr(error.args), "".join(traceback.format_exception(error))]
    told += [repr(vars(error)), repr(pickle.dumps(error.args))] if isinstance(error, LanceError) else []
    causes = [error.__cause__, None if error.__suppress_context__ else error.__context__]
    return "\n".join([*told, *(visible_text(each) for each in causes if each is not None)])


def visible_failures(given: SecretConfig, endpoint: str, place: Path) -> Iterator[str]:
    """Yield the visible text of every operation that can be started with this configuration."""
    options = {name: value.replace("{endpoint}", endpoint) for name, value in {**QUICK, **given.options}.items()}
    uri = given.uri.replace("{place}", str(place))
    store = given.manifest_store
    uses: list[Callable[[], object]] = [
        lambda: Table.open(uri, storage_options=options, manifest_store=store),
        lambda: Table.exists(uri, options),
        lambda: Table.create(uri, ROWS, storage_options=options, manifest_store=store),
        lambda: Table.open(f"{uri}/../x", storage_options=options, manifest_store=store),
    ]
    try:
        location = locate(uri, storage_options=options, manifest_store=store)
    except LanceError as error:
        yield visible_text(error)
    else:
        yield from (repr(location), str(location), repr(location.store), repr(location.codec), repr(location.access))
        yield from (location.address, repr(location.access.manifest_store))
        uses += _store_uses(location)
    for use in uses:
        try:
            yield repr(use())
        except LanceError as error:
            yield visible_text(error)


def _store_uses(location: Location) -> list[Callable[[], object]]:
    store = location.store
    return [
        lambda: store.read("data/x"),
        lambda: store.head("data/x"),
        lambda: store.list("_versions"),
        lambda: store.put("data/x", b""),
        lambda: store.create("_versions/1.manifest", b""),
        lambda: store.delete("data/x"),
        lambda: location.codec.open("data/x.lance").row_count,
        lambda: location.locate_other(f"{location.uri}/tree/b").store.read("x"),
        lambda: location.resolve_external_blob(f"{location.uri}/film", None)[0].read("film"),
    ]


@pytest.mark.parametrize(
    ("kind", "is_heard"),
    [
        (kind, heard)
        for kind, given in SECRET_CONFIGS.items()
        for heard in (False, True)
        if "{endpoint}" in str(given) or not heard
    ],
)
def test_no_failure_shows_a_secret(
    kind: str, is_heard: bool, tmp_path: Path, logs: LogCapture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once without a server at the endpoint, and once with a server that repeats each request in its rejection."""
    given = SECRET_CONFIGS[kind]
    if is_heard:
        with echo() as endpoint:
            told = list(visible_failures(given, endpoint, tmp_path))
    else:
        told = list(visible_failures(given, "http://127.0.0.1:1", tmp_path))
    printed = capfd.readouterr()
    assert len(told) >= 4
    check_clean((*told, *logs.messages, printed.out, printed.err))


def check_clean(texts: Iterable[str]) -> None:
    for text in texts:
        for mark in (CANARY, CANARY.replace("-", "0"), SECRET):
            at = text.find(mark)
            assert at < 0, text[max(0, at - 300) : at + 60]


def test_what_a_table_holds_shows_no_secret(tmp_path: Path, logs: LogCapture) -> None:
    """The files of a table contain no secret of its options, its intents or its manifest store, which has a query in
    its URL."""
    options = {"aws_secret_access_key": secret("key"), "azure_storage_sas_key": secret("sas"), "token": secret("token")}
    manifests = f"sqlite:///{tmp_path}/versions.db?check_same_thread=false"
    place = tmp_path / "t"
    table = Table.create(place, ROWS, storage_options=options, manifest_store=manifests, intent="monday")
    table = table.append(ROWS, intent="tuesday", properties={"run": "1"}).table
    table.tags.create("t")
    table.delete("id = 1", intent="wednesday").table.compact()
    table.clone(str(tmp_path / "clone"))
    written = [path.read_bytes().decode("latin1") for path in tmp_path.rglob("*") if path.is_file()]
    described = [repr(table), str(table.versions()), repr(table.manifest), table.explain(), str(table.fsck())]
    assert len(written) > 10
    check_clean((*written, *described, *logs.messages))


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, Callable[[str], Mapping[str, str]]]]:
    with s3() as server:
        made = server.bucket()
        yield server.endpoint, lambda through: {**made.options, **QUICK, "aws_endpoint": through, "uri": made.uri}


def test_a_commit_that_is_undecided_shows_no_secret(
    bucket: tuple[str, Callable[[str], Mapping[str, str]]], logs: LogCapture
) -> None:
    """Every response to the put of a version is lost, and so is the subsequent check."""
    endpoint, options_through = bucket
    with proxy_to(endpoint) as chaos:
        options = dict(options_through(chaos.endpoint))
        table = Table.create(f"{options.pop('uri')}/t", ROWS, storage_options={**options, "aws_session_token": CANARY})

        def decide(method: str, path: str) -> str | None:
            is_version = "_versions" in path
            put = any(method == "PUT" and ".manifest" in path for method, path, _ in chaos.requests[before:])
            return "lost before" if is_version and (method == "PUT" or put) else None

        before = len(chaos.requests)
        chaos.choose_fault = decide
        with pytest.raises(LanceError) as caught:
            table.append(ROWS, intent="monday", retries=1)
        chaos.choose_fault = lambda method, path: None
        records = [str(vars(table)), repr(table)]
    assert isinstance(caught.value, CommitUndecided)
    check_clean((visible_text(caught.value), *records, *logs.messages))


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        ("s3://lake/t", "s3://other/t", {"aws_secret_access_key", "token", "azure_storage_sas_key", "endpoint"}),
        ("s3://lake/t", "gs://other/t", {"timeout"}),
        ("s3://lake/t", "az://other/t", {"azure_storage_sas_key"}),
        ("gs://lake/t", "s3://other/t", {"aws_secret_access_key"}),
        ("az://lake/t", "abfss://c@acc.dfs.core.windows.net/t", {"azure_storage_sas_key", "token"}),
        ("az://lake/t", "abfss://c@evil.dfs.core.windows.net/t", {"azure_storage_account_name"}),
        ("abfss://c@one.dfs.core.windows.net/t", "abfss://c@one.dfs.core.windows.net/u", {"azure_storage_sas_key"}),
        ("abfss://c@one.dfs.core.windows.net/t", "abfss://c@two.dfs.core.windows.net/u", {"timeout"}),
        ("/data/t", "s3://lake/t", {"aws_secret_access_key", "token"}),
    ],
)
def test_credentials_are_for_the_place_they_were_given_for(own: str, other: str, told: set[str]) -> None:
    """Options that a base, a clone or a blob elsewhere receives from those of the table."""
    options = {
        "aws_secret_access_key": "a",
        "azure_storage_sas_key": "b",
        "azure_storage_account_name": "acc",
        "google_storage_token": "c",
        "token": "d",
        "endpoint": "e",
        "timeout": "5s",
    }
    found = options_for(options, own=own, other=other)
    assert told <= found.keys()
    of_others = {"s3": "aws", "gs": "google", "az": "azure", "abfss": "azure"}
    schemes = [uri.partition("://")[0] for uri in (own, other)]
    if schemes[0] in of_others and of_others[schemes[0]] != of_others[schemes[1]]:
        assert not {"token", "endpoint"} & found.keys()
        assert all(name.startswith(of_others[schemes[1]]) for name in found.keys() - {"timeout"})
    if "evil" in other or "two" in other:
        assert not {"azure_storage_sas_key", "token"} & found.keys()
    assert locate("/data/t").locate_other("/data/u").access.storage_options == {}
