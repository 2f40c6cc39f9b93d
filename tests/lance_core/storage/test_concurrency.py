"""Concurrent requests: how many are in flight, their order, errors, cancellation and deadlines, throttling, and deletes
in batches. The bucket is in memory, and events take the place of latency.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from lance_core import StorageError
from lance_core.storage.buckets.bucket import Bucket, DeletesBatches
from lance_core.storage.concurrency import ConcurrentCalls, SharedThreadPool, delete_all, map_requests
from lance_core.storage.factory import open_store
from lance_core.storage.memory import MemoryStore
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import ObjectUri
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.request_limiter import RequestLimiter, RequestStatistics, request_statistics
from lance_core.storage.request_scope import request_deadline
from lance_core.storage.secret_references import StoreOptions
from tests.histories.memory_bucket import MemoryBucket
from tests.lance_core.storage.buckets import s3_options
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import Server

PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class ObservedBucket(MemoryBucket):
    """Bucket that calls a function for each read, and counts the single deletes."""

    on_get: Callable[[str], None] = lambda key: None
    deleted: list[str] = field(default_factory=list)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        self.on_get(key)
        return super().get(key, start, length)

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        super().delete(key)


@dataclass(frozen=True, slots=True)
class BucketStore(ObjectStore):
    bucket: Bucket = field(default_factory=MemoryBucket, compare=False)

    @property
    def _bucket(self) -> Bucket:
        return self.bucket


def open_bucket(bucket: Bucket, **options: str) -> BucketStore:
    uri = f"s3://b{random.getrandbits(64):x}/t"  # a limiter of its own
    location, policy = ObjectUri.parse(uri, redacted=uri), RetryPolicy(sleep=lambda _seconds: None)
    return BucketStore(location, StoreOptions.parse("s3", uri, options), retry_policy=policy, bucket=bucket)


def statistics_of(store: ObjectStore) -> RequestStatistics:
    return request_statistics()[f"s3://{store.location.authority}"]


@pytest.mark.parametrize("limit", [2, 64])
def test_as_many_requests_are_in_flight_as_the_store_allows(limit: int) -> None:
    """Each request waits until `limit` of them are in flight, so fewer would block, and the statistics show more."""
    barrier = threading.Barrier(limit)
    bucket = ObservedBucket(on_get=lambda key: [barrier.wait(PATIENCE_SECONDS)].clear())
    store = open_bucket(bucket, max_concurrent_requests=str(limit))
    names = [f"n{number}" for number in range(3 * limit)]
    for name in names:
        store.put(name, name.encode())
    assert list(map_requests(store, store.read, names)) == [name.encode() for name in names]
    assert statistics_of(store).in_flight_max == limit
    assert statistics_of(store).bytes_received == sum(map(len, names))


def test_a_store_without_a_network_is_called_in_the_thread_of_the_caller() -> None:
    store = MemoryStore()
    threads = set(map_requests(store, lambda _item: threading.get_ident(), range(10)))
    with ConcurrentCalls(store) as calls:
        threads.add(calls.start(threading.get_ident)())
    assert threads == {threading.get_ident()}


def test_bytes_in_flight_are_limited() -> None:
    """Requests that each send 60 of 100 bytes are sent one at a time, and a larger one alone."""
    limiter, in_flight, largest = RequestLimiter(8, 100), [0], [0]
    lock = threading.Lock()

    def request() -> None:
        with lock:
            in_flight[0] += 1
            largest[0] = max(largest[0], in_flight[0])
        with lock:
            in_flight[0] -= 1

    threads = [threading.Thread(target=lambda: limiter.run(request, sent=60)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    limiter.run(request, sent=1000)
    assert largest == [1]
    assert limiter.statistics.bytes_sent == 8 * 60 + 1000


def test_a_busy_store_halves_the_limit_once_for_each_burst() -> None:
    limiter = RequestLimiter(64)
    barrier = threading.Barrier(16)

    def busy() -> None:
        barrier.wait(PATIENCE_SECONDS)
        raise RequestError(RequestErrorKind.BUSY, "SlowDown")

    def send() -> None:
        with pytest.raises(RequestError):
            limiter.run(busy)

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert limiter.statistics.limit == 32
    for _ in range(32 * 48):
        limiter.run(lambda: b"")
    assert limiter.statistics.limit > 60
    assert limiter.statistics.busy == 16


def test_lost_and_throttled_requests_do_not_reach_the_caller() -> None:
    """5 of 100 requests break off, and for one name in ten the store is busy for 8 seconds, which leaves at least three
    of the eleven attempts of a request."""
    chance, lock, current = random.Random(3), threading.Lock(), threading.local()
    waited: dict[str, float] = {}

    def fail_sometimes(key: str) -> None:
        current.key = key
        with lock:
            if key.endswith("0") and waited.get(key, 0) < 8:
                raise RequestError(RequestErrorKind.BUSY, "SlowDown")
            if chance.random() < 0.05:
                raise RequestError(RequestErrorKind.LOST, "reset")

    def sleep(seconds: float) -> None:
        waited[current.key] = waited.get(current.key, 0) + seconds

    store = open_bucket(ObservedBucket(on_get=fail_sometimes))
    store = BucketStore(store.location, store.options, RetryPolicy(sleep=sleep), store.bucket)
    names = [str(number) for number in range(1000)]
    for name in names:
        store.put(name, b"1")
    assert set(map_requests(store, store.read, names)) == {b"1"}
    statistics = statistics_of(store)
    assert statistics.busy > 500
    assert statistics.failed > 30
    assert statistics.requests == 2000 + statistics.busy + statistics.failed


def test_the_first_error_ends_the_rest() -> None:
    """Calls that have not begun are dropped, and those that wait for a retry are not retried."""
    waiting = threading.Event()

    def get(key: str) -> None:
        if key.endswith("/0"):
            waiting.wait(PATIENCE_SECONDS)
            raise RequestError(RequestErrorKind.FORBIDDEN, "no")
        waiting.set()
        raise RequestError(RequestErrorKind.LOST, "reset")

    bucket = ObservedBucket(on_get=get)
    store = open_bucket(bucket, max_concurrent_requests="2", client_max_retries="1000000")
    store = BucketStore(store.location, store.options, bucket=bucket)
    with pytest.raises(StorageError, match="access is denied"):
        list(map_requests(store, store.read, [str(number) for number in range(1000)]))
    assert statistics_of(store).requests < 10


def test_results_that_wait_for_the_caller_are_bounded() -> None:
    """A caller that closes the iterator early has caused few calls."""
    called: list[int] = []
    store = open_bucket(MemoryBucket(), max_concurrent_requests="4")
    results = map_requests(store, called.append, range(10_000))
    next(results)
    assert isinstance(results, Iterator)
    getattr(results, "close")()  # noqa: B009 - a generator, by its type an iterator
    assert len(called) <= 2 * 4 + 1


def test_nothing_is_retried_after_the_deadline() -> None:
    sent: list[str] = []

    def get(key: str) -> None:
        sent.append(key)
        raise RequestError(RequestErrorKind.BUSY, "SlowDown")

    store = open_bucket(ObservedBucket(on_get=get), max_concurrent_requests="2")
    with request_deadline(0.0), pytest.raises(StorageError, match="the store is busy"):
        list(map_requests(store, store.read, ["a", "b"]))
    assert "t/a" in sent
    assert len(sent) == len(set(sent))


@dataclass(frozen=True)
class BatchBucket(ObservedBucket, DeletesBatches):
    """Bucket that deletes in batches of 10, except for keys that it reports as failed."""

    batch_max: ClassVar[int] = 10
    failing: frozenset[str] = frozenset()
    is_refusing: bool = False
    batches: list[int] = field(default_factory=list)

    @property
    def deletes_batches(self) -> bool:
        return True

    def delete_batch(self, keys: Sequence[str]) -> Sequence[str]:
        self.batches.append(len(keys))
        if self.is_refusing:
            raise RequestError(RequestErrorKind.REFUSED, "NotImplemented")
        for key in keys:
            if key not in self.failing:
                self.objects.pop(key, None)
        return [key for key in keys if key in self.failing]


@pytest.mark.parametrize(
    ("failing", "is_refusing", "single"), [((), False, 0), (("t/3", "t/17"), False, 2), ((), True, 25)]
)
def test_objects_are_deleted_in_batches(failing: tuple[str, ...], is_refusing: bool, single: int) -> None:
    """Keys that a batch did not delete are deleted one by one, and so are all if the service refuses batches."""
    bucket = BatchBucket(failing=frozenset(failing), is_refusing=is_refusing)
    store = open_bucket(bucket)
    names = [str(number) for number in range(25)]
    for name in (*names, "stays"):
        store.put(name, b"")
    delete_all(store, names)
    assert list(bucket.objects) == ["t/stays"]
    assert sorted(bucket.batches) == [5, 10, 10]
    assert len(bucket.deleted) == single


@pytest.mark.parametrize(
    ("options", "count", "requests"),
    [({}, 1100, {"POST": 2}), ({"aws_disable_bulk_delete": "true"}, 3, {"DELETE": 3})],
)
def test_s3_deletes_a_thousand_objects_in_a_request(
    s3_server: Server, options: dict[str, str], count: int, requests: dict[str, int]
) -> None:
    with proxy_to(s3_server.endpoint) as proxy:
        bucket = s3_server.bucket()
        store = open_store(f"{bucket.uri}/t", storage_options={**s3_options(proxy.endpoint), **options})
        store.put("d/a&b", b"")
        delete_all(store, ["d/a&b", *(f"d/{number}" for number in range(count - 1))])
        assert list(store.walk("")) == []
    methods = [method for method, _, _ in proxy.requests]
    assert {method: methods.count(method) for method in ("POST", "DELETE") if method in methods} == requests


def test_shared_threads_are_those_of_all_callers() -> None:
    """Callers in 8 threads, each of which maps over 8 calls, have 4 threads together."""
    shared, lock, names, started = SharedThreadPool("shared"), threading.Lock(), set[str](), threading.Barrier(8)

    def square(number: int) -> int:
        with lock:
            names.add(threading.current_thread().name)
        return number**2

    def map_squares(results: list[list[int]]) -> None:
        started.wait(PATIENCE_SECONDS)
        results.append(shared.map(square, range(8), 4))

    results: list[list[int]] = []
    callers = [threading.Thread(target=map_squares, args=(results,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE_SECONDS)
    assert results == [[number**2 for number in range(8)]] * 8
    assert 0 < len(names) <= 4
    assert all(name.startswith("shared") for name in names)


def test_a_call_in_shared_threads_does_not_wait_for_them() -> None:
    shared, meeting = SharedThreadPool("nested"), threading.Barrier(2)

    def outer(number: int) -> list[str]:
        meeting.wait(PATIENCE_SECONDS)  # both threads are taken
        return shared.map(lambda _each: threading.current_thread().name, range(3), 2)

    answers = shared.map(outer, range(2), 2)
    assert [len(set(names)) for names in answers] == [1, 1]


def test_an_error_in_shared_threads_drops_the_calls_that_have_not_begun() -> None:
    shared, has_failed, calls = SharedThreadPool("failing"), threading.Event(), list[int]()

    def call(number: int) -> int:
        calls.append(number)
        if number == 0:
            raise StorageError("it failed")
        has_failed.wait(PATIENCE_SECONDS)
        return number

    with pytest.raises(StorageError, match="it failed"):
        shared.map(call, range(100), 2)
    has_failed.set()
    assert len(calls) < 10
    assert shared.map(len, ["a", "bc"], 2) == [1, 2]
