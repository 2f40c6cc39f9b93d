"""In-memory bucket: the product's object store without a network, where every request can be stopped.

A request is executed immediately, unless `FaultPlan` specify a fault for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lance_core.storage.answer_dates import AnswerDates
from lance_core.storage.buckets.bucket import Bucket, ListedKey, ListingPage
from lance_core.storage.buckets.client_cache import cached_client
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import ObjectUri
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.secret_references import StoreOptions
from lance_core.storage.store import Put
from tests.lance_core.storage.manifest_stores.fault_injection import FaultPlan


@dataclass(frozen=True, slots=True)
class BucketStore(ObjectStore):
    bucket: Bucket = field(default_factory=lambda: MemoryBucket(), compare=False)

    @property
    def _bucket(self) -> Bucket:
        return self.bucket

    @property
    def requests_max(self) -> int:
        """Return 1: the requests have an order, in which one of them is stopped."""
        return 1


@dataclass(frozen=True)
class MemoryBucket:
    honours_conditions: bool = True
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    uploads: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Parts of uploads that are not complete."""
    dates: AnswerDates = field(default_factory=AnswerDates)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        data, _modified = self._get_object(key)
        return data[start : None if length is None else start + length]

    def head(self, key: str) -> ListedKey:
        data, modified = self._get_object(key)
        return ListedKey(key, len(data), modified)

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        last_listed = max(after, continuation or "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > last_listed)
        listed = [key for key in keys if recursive or "/" not in key[len(prefix) :]]
        page = listed[:limit]
        return ListingPage([self.head(key) for key in page], page[-1] if len(listed) > limit else None)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = (bytes(data), datetime.now(UTC))

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects and self.honours_conditions:
            raise RequestError(RequestErrorKind.EXISTS, key)
        self.put(key, data)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def download(self, key: str, to: Path) -> None:
        to.write_bytes(self._get_object(key)[0])

    def begin_upload(self, key: str) -> str:
        upload_id = f"upload-{len(self.uploads)}"
        self.uploads[upload_id] = {}
        return upload_id

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        self.uploads[upload_id][str(number)] = data
        return str(number)

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        if upload_id not in self.uploads:
            raise RequestError(RequestErrorKind.ABSENT, key)
        parts = self.uploads.pop(upload_id)
        self.put(key, b"".join(parts[receipt] for receipt in receipts))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.uploads.pop(upload_id, None)

    def copy(self, key: str, to: str) -> None:
        self.put(to, self._get_object(key)[0])

    def _get_object(self, key: str) -> tuple[bytes, datetime]:
        if key not in self.objects:
            raise RequestError(RequestErrorKind.ABSENT, key)
        return self.objects[key]


@dataclass(frozen=True)
class SteppedBucket:
    inner: Bucket
    steps: FaultPlan

    @property
    def dates(self) -> AnswerDates:
        return self.inner.dates

    def get(self, key: str, start: int, length: int | None) -> bytes:
        return self.steps.run(f"get {key}", lambda: self.inner.get(key, start, length))

    def head(self, key: str) -> ListedKey:
        return self.steps.run(f"head {key}", lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        return self.steps.run(
            f"page {prefix}",
            lambda: self.inner.list_page(
                prefix, recursive=recursive, after=after, continuation=continuation, limit=limit
            ),
        )

    def put(self, key: str, data: bytes) -> None:
        self.steps.run(f"put {key}", lambda: self.inner.put(key, data))

    def create(self, key: str, data: bytes) -> None:
        def put() -> Put:
            try:
                self.inner.create(key, data)
            except RequestError as error:
                if error.kind is not RequestErrorKind.EXISTS:
                    raise
                return Put.EXISTS
            return Put.CREATED

        match self.steps.run_put(f"create {key}", put):
            case Put.EXISTS:
                raise RequestError(RequestErrorKind.EXISTS, key)
            case Put.UNKNOWN:
                raise RequestError(RequestErrorKind.LOST, key)

    def delete(self, key: str) -> None:
        self.steps.run(f"delete {key}", lambda: self.inner.delete(key))

    def download(self, key: str, to: Path) -> None:
        self.steps.run(f"download {key}", lambda: self.inner.download(key, to))

    def begin_upload(self, key: str) -> str:
        return self.steps.run(f"begin {key}", lambda: self.inner.begin_upload(key))

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        return self.steps.run(f"part {number} {key}", lambda: self.inner.upload_part(key, upload_id, number, data))

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        self.steps.run(f"complete {key}", lambda: self.inner.complete_upload(key, upload_id, receipts))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.steps.run(f"abort {key}", lambda: self.inner.abort_upload(key, upload_id))

    def copy(self, key: str, to: str) -> None:
        self.steps.run(f"copy {key}", lambda: self.inner.copy(key, to))


def open_memory_bucket_store(uri: str, bucket: MemoryBucket, steps: FaultPlan) -> BucketStore:
    location, retry_policy = ObjectUri.parse(uri, redacted=uri), RetryPolicy(sleep=lambda _seconds: None)
    return BucketStore(
        location, StoreOptions.parse("s3", uri, {}), retry_policy=retry_policy, bucket=SteppedBucket(bucket, steps)
    )


def open_emulator_store(uri: str, options: Mapping[str, str], steps: FaultPlan) -> BucketStore:
    location = ObjectUri.parse(uri, redacted=uri)
    parsed = StoreOptions.parse(location.scheme, uri, options)
    bucket = SteppedBucket(cached_client(location.authority, parsed.settings), steps)
    return BucketStore(location, parsed, bucket=bucket)
