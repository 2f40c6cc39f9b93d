"""What one request that goes wrong becomes: asked again, UNKNOWN, or an error that says what to do. Real clients, real
servers, a proxy between them."""

from dataclasses import replace

import pytest

from lance_core import NotFound, StorageError
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.store import Put
from tests.lance_core.storage.chaos import FAULTS_OF_READS, FAULTS_OF_WRITES, Chaos, between
from tests.lance_core.storage.servers import Server

WRITES = ("PUT", "POST")


class Faults:
    """Those of one kind of request to one object, in order; then none."""

    def __init__(self, *faults: str, methods: tuple[str, ...] = WRITES, name: str = "it") -> None:
        self._left = list(faults)
        self._methods = methods
        self._name = name

    def __call__(self, method: str, path: str) -> str | None:
        meant = method in self._methods and self._name in path and "probe" not in path
        return self._left.pop(0) if self._left and meant else None


def through(server: Server, chaos: Chaos, **options: str) -> tuple[ObjectStore, list[float]]:
    """A store, and how long it paused."""
    chaos.target = server.endpoint.removesuffix("/devstoreaccount1")
    bucket = server.bucket(chaos.endpoint + server.endpoint.removeprefix(chaos.target))
    paused: list[float] = []
    store = open_store(f"{bucket.uri}/t", storage_options={**bucket.options, **options})
    assert isinstance(store, ObjectStore)
    return replace(store, retry_policy=replace(store.retry_policy, sleep=paused.append)), paused


def sent(chaos: Chaos, name: str = "it") -> int:
    return sum(method in WRITES and name in path and "probe" not in path for method, path, _ in chaos.seen)


@pytest.mark.parametrize("fault", FAULTS_OF_WRITES)
def test_a_create_is_sent_once_and_its_answer_is_not_guessed(server: Server, fault: str) -> None:
    with between("", Faults(fault)) as chaos:
        store, _ = through(server, chaos)
        assert store.create("d/it", b"1") is Put.UNKNOWN
        assert sent(chaos) == 1
        landed = store.head("d/it") is not None
        assert landed == fault.endswith("after")
        assert store.create("d/it", b"2") is (Put.EXISTS if landed else Put.CREATED)
        assert store.read("d/it") == (b"1" if landed else b"2")


@pytest.mark.parametrize("fault", FAULTS_OF_WRITES)
def test_a_put_is_sent_until_it_is_answered(server: Server, fault: str) -> None:
    with between("", Faults(fault, fault)) as chaos:
        store, paused = through(server, chaos)
        store.put("d/it", b"1")
        assert sent(chaos) == 3
        assert len(paused) == 2
        assert store.read("d/it") == b"1"


@pytest.mark.parametrize("fault", FAULTS_OF_READS)
def test_whatever_reads_asks_again(server: Server, fault: str) -> None:
    data = bytes(range(256)) * 40
    with between("", Faults(fault, fault, methods=("GET", "HEAD"), name="")) as chaos:
        store, _ = through(server, chaos)
        chaos.decide = lambda method, path: None
        store.put("d/it", data)
        for ask, expected in (
            (lambda: store.read("d/it"), data),
            (lambda: store.read("d/it", 100, 1000), data[100:1100]),
            (lambda: [info.path for info in store.list("d")], ["d/it"]),
            (lambda: [info.path for info in store.walk("d")], ["d/it"]),
            (lambda: [store.head("d/it")], [store.head("d/it")]),
        ):
            chaos.decide = Faults(fault, fault, methods=("GET", "HEAD"), name="")
            assert ask() == expected
        assert sum(met is not None for _, _, met in chaos.seen) >= 9


def test_an_object_that_is_deleted_twice_is_gone(server: Server) -> None:
    with between("", Faults("lost after", methods=("DELETE",))) as chaos:
        store, _ = through(server, chaos)
        store.put("d/it", b"1")
        store.delete("d/it")
        assert store.head("d/it") is None


def test_patience_ends(s3_server: Server) -> None:
    with between("", Faults(*["503 before"] * 99, methods=("GET",))) as chaos:
        store, paused = through(s3_server, chaos, client_max_retries="3")
        with pytest.raises(
            StorageError, match=r"could not read s3://.*/t/d/it on Amazon S3.*busy: SlowDown; try again"
        ):
            store.read("d/it")
        assert len(paused) == 3
        assert paused == sorted(paused)


def test_patience_ends_by_the_clock() -> None:
    clock = iter(range(0, 1000, 40))
    asked = []

    def busy() -> None:
        asked.append(1)
        raise RequestError(RequestErrorKind.BUSY, "")

    patience = RetryPolicy(seconds_max=100, retries_max=50, sleep=lambda seconds: None, now=lambda: float(next(clock)))
    with pytest.raises(RequestError):
        patience.run(busy, retry_on=frozenset((RequestErrorKind.BUSY,)))
    assert len(asked) == 3


@pytest.mark.parametrize("call", ["read", "list", "put", "create"])
def test_what_is_not_allowed_is_not_asked_for_again(server: Server, call: str) -> None:
    with between("") as chaos:
        store, paused = through(server, chaos)
        assert store.create("d/other", b"1") is Put.CREATED
        chaos.decide = lambda method, path: "403 before"
        before = len(chaos.seen)
        asked = {
            "read": lambda: store.read("d/it"),
            "list": lambda: store.list("d"),
            "put": lambda: store.put("d/it", b"1"),
            "create": lambda: store.create("d/it", b"1"),
        }
        with pytest.raises(StorageError, match=r"access is denied.*check the credentials"):
            asked[call]()
        assert len(chaos.seen) == before + 1
        assert paused == []


def test_a_store_that_says_nothing_is_not_waited_for_without_end(server: Server) -> None:
    with between("", Faults("hanging before", methods=("GET", *WRITES))) as chaos:
        store, _ = through(server, chaos, timeout="300ms")
        assert store.create("d/it", b"1") is Put.UNKNOWN
        chaos.decide = Faults("hanging before", methods=("GET",))
        with pytest.raises(NotFound):
            store.read("d/it")


def test_an_error_names_no_cause_with_a_secret(s3_server: Server) -> None:
    with between("", Faults(*["500 before"] * 9, methods=("GET",))) as chaos:
        store, _ = through(s3_server, chaos, client_max_retries="1")
        with pytest.raises(StorageError) as caught:
            store.read("d/it")
    cause = caught.value.__cause__
    assert isinstance(cause, RequestError)
    assert cause.__suppress_context__
