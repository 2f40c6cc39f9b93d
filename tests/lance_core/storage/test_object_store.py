"""Object stores: the store contract for each service, and the detection of stores without conditional puts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lance_core import InvalidInput, NotFound, StorageError, Unsupported
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_upload import upload_file
from lance_core.storage.request_errors import RetryPolicy
from lance_core.storage.store import ObjectDetails, Put, SupportsOrderedListing
from tests.lance_core.storage.buckets import SECRET, Bucket, s3_options
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.gcs_server import GcsEmulator
from tests.lance_core.storage.object_servers import AZURE_KEY, Server, gcs
from tests.lance_core.storage.store_contract import StoreContract

ROOT = Path(__file__).parents[3]


def open_in_bucket(bucket: Bucket, path: str = "some/where") -> ObjectStore:
    store = open_store(f"{bucket.uri}/{path}", storage_options=bucket.options)
    assert isinstance(store, ObjectStore)
    return replace(store, retry_policy=RetryPolicy(sleep=lambda seconds: None))


class TestObjects(StoreContract):
    @pytest.fixture
    def store(self, server: Server) -> ObjectStore:
        return open_in_bucket(server.bucket())

    def test_its_description(self, server: Server) -> None:
        bucket = server.bucket()
        assert open_in_bucket(bucket, "a/b/").description == f"{bucket.uri}/a/b"

    def test_a_store_covers_its_prefix_of_the_bucket(self, server: Server) -> None:
        bucket = server.bucket()
        top, one, two = open_in_bucket(bucket, ""), open_in_bucket(bucket, "t"), open_in_bucket(bucket, "t2")
        one.put("d/x", b"1")
        two.put("d/y", b"22")
        assert [info.path for info in one.walk("d")] == ["d/x"]
        assert [info.path for info in one.walk("")] == ["d/x"]
        assert [info.path for info in top.walk("")] == ["t/d/x", "t2/d/y"]
        assert top.read("t2/d/y") == b"22"

    def test_names_are_kept_unchanged(self, store: ObjectStore) -> None:
        names = ["a b", "a+b", "a%20b", "ä", "a=b&c", "tree%2Fdev", "x:y@z", "'q'"]
        for name in names:
            store.put(f"d/{name}", name.encode())
        assert [info.path for info in store.list("d")] == sorted(f"d/{name}" for name in names)
        assert [store.read(f"d/{name}").decode() for name in names] == names
        for name in names:
            store.delete(f"d/{name}")
        assert list(store.list("d")) == []

    def test_a_listing_and_a_head_identify_the_content(self, store: ObjectStore) -> None:
        tags = set()
        for content in (b"one", b"two"):
            store.put("d/name", content)
            (listed,) = store.list("d")
            head = store.head("d/name")
            assert isinstance(head, ObjectDetails)
            assert isinstance(listed, ObjectDetails)
            assert head.tag == listed.tag
            tags.add(head.tag)
        assert len(tags) == 2
        assert "" not in tags

    def test_the_first_names_are_one_request(self, store: ObjectStore) -> None:
        assert isinstance(store, SupportsOrderedListing)
        for name in ("c", "a", "b", "d/below"):
            store.put(f"v/{name}", b"1")
        assert [info.path for info in store.list_first("v", 2)] == ["v/a", "v/b"]
        assert [info.path for info in store.list_first("v", 20)] == ["v/a", "v/b", "v/c"]
        assert list(store.list_first("nothing", 2)) == []

    def test_a_listing_has_all_its_pages(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lance_core.storage.object_store.PAGE_KEYS_MAX", 3)
        names = [f"{number:02}" for number in range(11)]
        for name in names:
            store.put(f"d/{name}", b"")
            store.put(f"d/{name}-below/x", b"")
        assert [info.path for info in store.list("d")] == [f"d/{name}" for name in names]
        assert [info.path for info in store.list("d", start_after="04x")] == [f"d/{name}" for name in names[5:]]
        assert len(store.walk("d")) == 22

    def test_files_are_uploaded_and_downloaded(self, store: ObjectStore, server: Server, tmp_path: Path) -> None:
        data = bytes(range(256)) * 300
        (tmp_path / "up").write_bytes(data)
        upload_file(store, tmp_path / "up", "d/file")
        assert store.read("d/file") == data
        store.download("d/file", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == data
        assert store.copy_within("d/file", store, "d/copy")
        assert store.read("d/copy") == data
        assert not store.copy_within("d/file", open_in_bucket(server.bucket()), "d/copy")
        with pytest.raises(NotFound, match="d/nothing does not exist"):
            store.download("d/nothing", tmp_path / "nothing")
        with pytest.raises(NotFound, match="d/nothing does not exist"):
            store.copy_within("d/nothing", store, "d/x")


def test_a_missing_bucket_is_an_error(server: Server) -> None:
    bucket = server.bucket()
    store = open_in_bucket(Bucket(f"{bucket.uri}-gone", bucket.options))
    calls = (lambda: store.list("d"), lambda: store.create("d/x", b""), lambda: store.put("d/x", b""))
    for call in calls:
        with pytest.raises(StorageError, match="the store rejected the request"):
            call()


def test_conditional_puts_are_probed_once(s3_server: Server) -> None:
    with proxy_to(s3_server.endpoint) as proxy:
        bucket = s3_server.bucket(proxy.endpoint)
        for path in ("one", "two"):
            assert open_in_bucket(bucket, path).create("x", b"1") is Put.CREATED
    writes = [(method, path.split("/")[2:4]) for method, path, _ in proxy.requests if method in ("PUT", "DELETE")]
    probe = ["one", "_lance_assets"]
    assert writes == [("PUT", probe), ("PUT", probe), ("DELETE", probe), ("PUT", ["one", "x"]), ("PUT", ["two", "x"])]


def test_a_store_that_ignores_conditions_is_rejected() -> None:
    with gcs(emulator := GcsEmulator(honours_conditions=False)) as server:
        bucket = server.bucket()
        for _ in range(2):
            with pytest.raises(Unsupported, match="rows would be lost: put the table into a store that honours"):
                open_in_bucket(bucket).create("_versions/1.manifest", b"1")
    assert list(emulator.buckets.values()) == [{}]


@pytest.mark.parametrize("fault", ["lost before", "lost after", "409 before", "503 before", "500 after"])
def test_the_probe_of_conditions_survives_lost_answers(s3_server: Server, fault: str) -> None:
    faults = iter([fault, None, fault])

    def decide(method: str, path: str) -> str | None:
        return next(faults, None) if method == "PUT" else None

    with proxy_to(s3_server.endpoint, decide) as proxy:
        assert open_in_bucket(s3_server.bucket(proxy.endpoint)).create("x", b"1") is Put.CREATED


def test_an_unanswered_probe_of_conditions_stops_the_write(s3_server: Server) -> None:
    with proxy_to(s3_server.endpoint, lambda method, path: "503 before" if method == "PUT" else None) as proxy:
        store = open_in_bucket(s3_server.bucket(proxy.endpoint))
        with pytest.raises(StorageError, match=r"got no answer.*no table data was written"):
            store.create("x", b"1")
    assert {"probe" in path for method, path, _ in proxy.requests if method == "PUT"} == {True}


def test_a_forked_process_has_its_own_clients(server: Server) -> None:
    """The process ends without warnings, as its parent does: it leaves no session open, destroys no task and waits for
    no thread.
    """
    bucket = server.bucket()
    program = """
import json, os, sys
from lance_core.storage.factory import open_store
uri, options = sys.argv[1], json.loads(sys.argv[2])
store = open_store(uri, storage_options=options)
print(store.create("parent", b"1").name, flush=True)
child = os.fork()
if child == 0:
    print(store.create("child", b"2").name, store.read("parent").decode(), flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], store.read("child").decode(), flush=True)
"""
    command = [sys.executable, "-W", "default", "-W", "ignore::DeprecationWarning", "-c", program]
    completed = subprocess.run(
        [*command, f"{bucket.uri}/t", json.dumps(dict(bucket.options))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.stdout.split("\n") == ["CREATED", "CREATED 1", "0 2", ""]
    assert completed.stderr == ""


@pytest.mark.parametrize("convert", [repr, str])
def test_no_text_contains_a_secret(server: Server, convert: type) -> None:
    bucket = server.bucket()
    store = open_in_bucket(bucket)
    texts = [convert(store), convert(store.settings), convert(store._bucket)]
    missing = open_in_bucket(Bucket(f"{bucket.uri}-gone", bucket.options))
    with pytest.raises(StorageError) as caught:
        missing.put("x", b"")
    error: BaseException | None = caught.value
    while error:
        texts.append(convert(error))
        error = error.__cause__
    assert [secret for secret in (SECRET, AZURE_KEY) if any(secret in text for text in texts)] == []


def test_an_unreachable_store_is_reported(s3_server: Server) -> None:
    options = s3_options("http://127.0.0.1:9")
    store = open_in_bucket(Bucket("s3://bucket", options))
    for call in (lambda: store.read("x"), lambda: store.create("x", b""), lambda: store.put("x", b"")):
        with pytest.raises(StorageError, match=r"the store was not reached.*check the endpoint"):
            call()


def test_connections_without_tls_need_an_option(s3_server: Server) -> None:
    options = {name: value for name, value in s3_options(s3_server.endpoint).items() if name != "allow_http"}
    with pytest.raises(InvalidInput, match=r"aws_endpoint has an address without TLS.*allow_http='true'"):
        open_store("s3://bucket/t", storage_options=options)
