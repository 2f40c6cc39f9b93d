"""Twelve kinds of secrets, planted wherever a caller can give one, and every failure that can be provoked: none of them
is in what anybody is shown afterwards. Not in errors and what caused them, not in what objects call themselves, not in
logs at their most talkative, whoever writes them, nor in the files of a table.
"""

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
from tests.lance_core.storage.chaos import between
from tests.lance_core.storage.servers import SECRET, s3

ROWS = pa.table({"id": [1, 2, 3]})
CANARY = "canary-7f3a9c"
QUICK = {"client_max_retries": "0", "client_retry_timeout": "1s", "timeout": "2s", "connect_timeout": "1s"}


def secret(kind: str) -> str:
    """Of a form that clients take, in base64 too."""
    return f"{CANARY}{kind}AAAA".replace("-", "0").ljust(40, "A")


@dataclass(frozen=True)
class Given:
    uri: str
    options: Mapping[str, str]
    """`{endpoint}` stands for the server."""
    manifest_store: str | None = None


AWS = {"aws_region": "us-east-1", "aws_endpoint": "{endpoint}", "allow_http": "true"}
AZURE = {"azure_storage_endpoint": "{endpoint}", "azure_storage_account_name": "acc", "allow_http": "true"}
GOOGLE = {"google_base_url": "{endpoint}", "allow_http": "true"}


def google_key() -> str:
    """Of a service account, with a token address that is the server itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    told = {"type": "service_account", "client_email": f"{secret('email')}@x", "private_key_id": secret("keyid")}
    return json.dumps({**told, "private_key": pem, "token_uri": "{endpoint}/token", "project_id": "p"})


KINDS: dict[str, Given] = {
    "aws key": Given(
        "s3://bucket/t", {**AWS, "aws_access_key_id": secret("id"), "aws_secret_access_key": secret("key")}
    ),
    "aws token": Given(
        "s3://bucket/t",
        {**AWS, "aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_session_token": secret("token")},
    ),
    "azure account key": Given("az://container/t", {**AZURE, "azure_storage_account_key": secret("key")}),
    "azure sas": Given("az://container/t", {**AZURE, "azure_storage_sas_key": f"?sv=2022-11-02&sig={secret('sas')}"}),
    "azure token": Given("az://container/t", {**AZURE, "azure_storage_token": secret("token")}),
    "google key": Given("gs://bucket/t", {**GOOGLE, "google_service_account_key": google_key()}),
    "google token": Given("gs://bucket/t", {**GOOGLE, "google_storage_token": secret("token")}),
    "a broken google key": Given("gs://bucket/t", {**GOOGLE, "google_service_account_key": f"{{{secret('half')}"}),
    "user and password in a URI": Given(f"s3://me:{secret('word')}@bucket/t", AWS),
    "a password with a slash": Given(f"s3://me:a/b{secret('word')}@bucket/t", AWS),
    "a password with a question mark": Given(f"s3+ddb://me:a?b{secret('word')}@bucket/t", AWS),
    "a presigned URL": Given(f"https://host/t?X-Amz-Signature={secret('signature')}", {}),
    "a query in a URI": Given(f"s3://bucket/t?token={secret('query')}", AWS),
    "an endpoint with a password": Given("s3://bucket/t", {**AWS, "aws_endpoint": f"http://me:{secret('word')}@host"}),
    "an endpoint with a query": Given("az://c/t", {"azure_endpoint": f"https://host?sig={secret('sig')}"}),
    "a proxy": Given("s3://bucket/t", {**AWS, "proxy_url": f"http://me:{secret('proxy')}@proxy"}),
    "credentials of the machine": Given("az://container/t", AZURE),
    "an option that nobody knows": Given("s3://bucket/t", {**AWS, "aws_secret_acess_key": secret("typo")}),
    "a number that is none": Given("s3://bucket/t", {**AWS, "client_max_retries": secret("number")}),
    "a flag that is none": Given("s3://bucket/t", {**AWS, "aws_skip_signature": secret("flag")}),
    "a SQL database": Given("{place}/t", {}, f"postgresql+psycopg://me:{secret('word')}@127.0.0.1:1/db"),
    "a SQL database with its password in the query": Given(
        "{place}/t", {}, f"postgresql+psycopg://127.0.0.1:1/db?user=me&password={secret('word')}"
    ),
    "a SQL URL that is none": Given("{place}/t", {}, f"me:{secret('word')}@127.0.0.1/db"),
    "a SQL dialect that is none": Given("{place}/t", {}, f"nosuch://me:{secret('word')}@127.0.0.1/db"),
    "dynamodb": Given(
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
    "a dynamodb endpoint with a password": Given(
        "s3://bucket/t", {**AWS, "dynamodb_endpoint": f"http://me:{secret('word')}@host"}, "dynamodb://versions"
    ),
}


class _Echo(BaseHTTPRequestHandler):
    """Refuses, and says aloud all that it was told."""

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
        """Nothing."""


@contextmanager
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Listening(logging.Handler):
    """To everybody, at the most talkative."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.told: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


@pytest.fixture
def logs() -> Iterator[Listening]:
    root, handler = logging.getLogger(), Listening()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(before)
    root.removeHandler(handler)


def shown(error: BaseException) -> str:
    """All that a person or a log can see of an error."""
    told = [repr(error), str(error), repr(error.args), "".join(traceback.format_exception(error))]
    told += [repr(vars(error)), repr(pickle.dumps(error.args))] if isinstance(error, LanceError) else []
    causes = [error.__cause__, None if error.__suppress_context__ else error.__context__]
    return "\n".join([*told, *(shown(each) for each in causes if each is not None)])


def failures(given: Given, endpoint: str, place: Path) -> Iterator[str]:
    """What is seen of everything that can be begun with these."""
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
        yield shown(error)
    else:
        yield from (repr(location), str(location), repr(location.store), repr(location.codec), repr(location.access))
        yield from (location.address, repr(location.access.manifest_store))
        uses += _of(location)
    for use in uses:
        try:
            yield repr(use())
        except LanceError as error:
            yield shown(error)


def _of(location: Location) -> list[Callable[[], object]]:
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
        for kind, given in KINDS.items()
        for heard in (False, True)
        if "{endpoint}" in str(given) or not heard
    ],
)
def test_no_failure_shows_a_secret(
    kind: str, is_heard: bool, tmp_path: Path, logs: Listening, capfd: pytest.CaptureFixture[str]
) -> None:
    """With nobody at the endpoint, and with a server there that repeats all that it hears in its refusal."""
    given = KINDS[kind]
    if is_heard:
        with echo() as endpoint:
            told = list(failures(given, endpoint, tmp_path))
    else:
        told = list(failures(given, "http://127.0.0.1:1", tmp_path))
    printed = capfd.readouterr()
    assert len(told) >= 4
    check_clean((*told, *logs.told, printed.out, printed.err))


def check_clean(texts: Iterable[str]) -> None:
    for text in texts:
        for mark in (CANARY, CANARY.replace("-", "0"), SECRET):
            at = text.find(mark)
            assert at < 0, text[max(0, at - 300) : at + 60]


def test_what_a_table_holds_shows_no_secret(tmp_path: Path, logs: Listening) -> None:
    """Whatever was given along with a table on disk, an intent and a manifest store with a password in its name."""
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
    check_clean((*written, *described, *logs.told))


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, Callable[[str], Mapping[str, str]]]]:
    with s3() as server:
        made = server.bucket()
        yield server.endpoint, lambda through: {**made.options, **QUICK, "aws_endpoint": through, "uri": made.uri}


def test_a_commit_that_is_undecided_shows_no_secret(
    bucket: tuple[str, Callable[[str], Mapping[str, str]]], logs: Listening
) -> None:
    """Every answer to the put of a version is lost, and so is the look afterwards."""
    endpoint, options_through = bucket
    with between(endpoint) as chaos:
        options = dict(options_through(chaos.endpoint))
        table = Table.create(f"{options.pop('uri')}/t", ROWS, storage_options={**options, "aws_session_token": CANARY})

        def decide(method: str, path: str) -> str | None:
            is_version = "_versions" in path
            put = any(method == "PUT" and ".manifest" in path for method, path, _ in chaos.seen[before:])
            return "lost before" if is_version and (method == "PUT" or put) else None

        before = len(chaos.seen)
        chaos.decide = decide
        with pytest.raises(LanceError) as caught:
            table.append(ROWS, intent="monday", retries=1)
        chaos.decide = lambda method, path: None
        records = [str(vars(table)), repr(table)]
    assert isinstance(caught.value, CommitUndecided)
    check_clean((shown(caught.value), *records, *logs.told))


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
    """What a base, a clone or a blob elsewhere is told of the options of a table."""
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
