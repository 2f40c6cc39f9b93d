"""Request errors: a failed request is repeated, has an unknown outcome, or raises an error that says what to do. The
tests use real clients, emulated services and a proxy between them.
"""

from dataclasses import replace

import pytest

from lance_core import NotFound, StorageError
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.store import Put
from tests.lance_core.storage.faulty_proxy import FAULTS_OF_READS, FAULTS_OF_WRITES, FaultyProxy, proxy_to
from tests.lance_core.storage.object_servers import Server

WRITES = ("PUT", "POST")


class Faults:
    """The faults of one kind of request to one object, in order; no faults afterwards."""

    def __init__(self, *faults: str, methods: tuple[str, ...] = WRITES, name: str = "it") -> None:
        self._remaining = list(faults)
        self._methods = methods
        self._name = name

    def __call__(self, method: str, path: str) -> str | None:
        is_affected = method in self._methods and self._name in path and "probe" not in path
        return self._remaining.pop(0) if self._remaining and is_affected else None


def open_through_proxy(server: Server, proxy: FaultyProxy, **options: str) -> tuple[ObjectStore, list[float]]:
    """Return a store that is reached through the proxy and the list of its pauses."""
    proxy.target = server.endpoint.removesuffix("/devstoreaccount1")
    bucket = server.bucket(proxy.endpoint + server.endpoint.removeprefix(proxy.target))
    pauses: list[float] = []
    store = open_store(f"{bucket.uri}/t", storage_options={**bucket.options, **options})
    assert isinstance(store, ObjectStore)
    return replace(store, retry_policy=replace(store.retry_policy, sleep=pauses.append)), pauses


def count_writes(proxy: FaultyProxy, name: str = "it") -> int:
    return sum(method in WRITES and name in path and "probe" not in path for method, path, _ in proxy.requests)


@pytest.mark.parametrize("fault", FAULTS_OF_WRITES)
def test_a_create_is_sent_once_and_may_be_unknown(server: Server, fault: str) -> None:
    with proxy_to("", Faults(fault)) as proxy:
        store, _ = open_through_proxy(server, proxy)
        assert store.create("d/it", b"1") is Put.UNKNOWN
        assert count_writes(proxy) == 1
        is_stored = store.head("d/it") is not None
        assert is_stored == fault.endswith("after")
        assert store.create("d/it", b"2") is (Put.EXISTS if is_stored else Put.CREATED)
        assert store.read("d/it") == (b"1" if is_stored else b"2")


@pytest.mark.parametrize("fault", FAULTS_OF_WRITES)
def test_a_put_is_sent_until_it_is_answered(server: Server, fault: str) -> None:
    with proxy_to("", Faults(fault, fault)) as proxy:
        store, pauses = open_through_proxy(server, proxy)
        store.put("d/it", b"1")
        assert count_writes(proxy) == 3
        assert len(pauses) == 2
        assert store.read("d/it") == b"1"


@pytest.mark.parametrize("fault", FAULTS_OF_READS)
def test_reads_are_repeated(server: Server, fault: str) -> None:
    data = bytes(range(256)) * 40
    with proxy_to("", Faults(fault, fault, methods=("GET", "HEAD"), name="")) as proxy:
        store, _ = open_through_proxy(server, proxy)
        proxy.choose_fault = lambda method, path: None
        store.put("d/it", data)
        for read, expected in (
            (lambda: store.read("d/it"), data),
            (lambda: store.read("d/it", 100, 1000), data[100:1100]),
            (lambda: [info.path for info in store.list("d")], ["d/it"]),
            (lambda: [info.path for info in store.walk("d")], ["d/it"]),
            (lambda: [store.head("d/it")], [store.head("d/it")]),
        ):
            proxy.choose_fault = Faults(fault, fault, methods=("GET", "HEAD"), name="")
            assert read() == expected
        assert sum(fault_of_request is not None for _, _, fault_of_request in proxy.requests) >= 9


def test_a_repeated_delete_succeeds(server: Server) -> None:
    with proxy_to("", Faults("lost after", methods=("DELETE",))) as proxy:
        store, _ = open_through_proxy(server, proxy)
        store.put("d/it", b"1")
        store.delete("d/it")
        assert store.head("d/it") is None


def test_retries_are_limited(s3_server: Server) -> None:
    with proxy_to("", Faults(*["503 before"] * 99, methods=("GET",))) as proxy:
        store, pauses = open_through_proxy(s3_server, proxy, client_max_retries="3")
        with pytest.raises(
            StorageError, match=r"could not read s3://.*/t/d/it on Amazon S3.*busy: SlowDown; try again"
        ):
            store.read("d/it")
        assert len(pauses) == 3
        assert pauses == sorted(pauses)


def test_retries_end_at_the_deadline() -> None:
    clock = iter(range(0, 1000, 40))
    calls = []

    def raise_busy() -> None:
        calls.append(1)
        raise RequestError(RequestErrorKind.BUSY, "")

    policy = RetryPolicy(seconds_max=100, retries_max=50, sleep=lambda seconds: None, now=lambda: float(next(clock)))
    with pytest.raises(RequestError):
        policy.run(raise_busy, retry_on=frozenset((RequestErrorKind.BUSY,)))
    assert len(calls) == 3


@pytest.mark.parametrize("call", ["read", "list", "put", "create"])
def test_a_denied_request_is_not_repeated(server: Server, call: str) -> None:
    with proxy_to("") as proxy:
        store, pauses = open_through_proxy(server, proxy)
        assert store.create("d/other", b"1") is Put.CREATED
        proxy.choose_fault = lambda method, path: "403 before"
        before = len(proxy.requests)
        calls = {
            "read": lambda: store.read("d/it"),
            "list": lambda: store.list("d"),
            "put": lambda: store.put("d/it", b"1"),
            "create": lambda: store.create("d/it", b"1"),
        }
        with pytest.raises(StorageError, match=r"access is denied.*check the credentials"):
            calls[call]()
        assert len(proxy.requests) == before + 1
        assert pauses == []


def test_a_silent_store_runs_into_the_timeout(server: Server) -> None:
    with proxy_to("", Faults("hanging before", methods=("GET", *WRITES))) as proxy:
        store, _ = open_through_proxy(server, proxy, timeout="300ms")
        assert store.create("d/it", b"1") is Put.UNKNOWN
        proxy.choose_fault = Faults("hanging before", methods=("GET",))
        with pytest.raises(NotFound):
            store.read("d/it")


def test_an_error_has_no_cause_with_a_secret(s3_server: Server) -> None:
    with proxy_to("", Faults(*["500 before"] * 9, methods=("GET",))) as proxy:
        store, _ = open_through_proxy(s3_server, proxy, client_max_retries="1")
        with pytest.raises(StorageError) as caught:
            store.read("d/it")
    cause = caught.value.__cause__
    assert isinstance(cause, RequestError)
    assert cause.__suppress_context__
