"""A bucket of this process, and the product's object store over it: every request is a call that can be stopped.

An object store without a network: what is sent is done at once, or as a `Steps` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lance_core.storage.buckets.bucket import Bucket, ListedKey, ListingPage
from lance_core.storage.buckets.client_cache import cached_client
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import ObjectUri
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.secret_references import StoreOptions
from lance_core.storage.store import Put
from tests.lance_core.storage.manifest_stores.stepping import Steps


@dataclass(frozen=True, slots=True)
class BucketStore(ObjectStore):
    bucket: Bucket = field(default_factory=lambda: MemoryBucket(), compare=False)

    @property
    def _bucket(self) -> Bucket:
        return self.bucket


@dataclass(frozen=True)
class MemoryBucket:
    honours_conditions: bool = True
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        data, _when = self._found(key)
        return data[start : None if length is None else start + length]

    def head(self, key: str) -> ListedKey:
        data, when = self._found(key)
        return ListedKey(key, len(data), when)

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        behind = max(after, continuation or "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > behind)
        shown = [key for key in keys if recursive or "/" not in key[len(prefix) :]]
        page = shown[:limit]
        return ListingPage([self.head(key) for key in page], page[-1] if len(shown) > limit else None)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = (bytes(data), datetime.now(UTC))

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects and self.honours_conditions:
            raise RequestError(RequestErrorKind.EXISTS, key)
        self.put(key, data)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def download(self, key: str, to: Path) -> None:
        to.write_bytes(self._found(key)[0])

    def upload(self, source: Path, key: str) -> None:
        self.put(key, source.read_bytes())

    def copy(self, key: str, to: str) -> None:
        self.put(to, self._found(key)[0])

    def _found(self, key: str) -> tuple[bytes, datetime]:
        if key not in self.objects:
            raise RequestError(RequestErrorKind.ABSENT, key)
        return self.objects[key]


@dataclass(frozen=True)
class SteppedBucket:
    inner: Bucket
    steps: Steps

    def get(self, key: str, start: int, length: int | None) -> bytes:
        return self.steps.other(f"get {key}", lambda: self.inner.get(key, start, length))

    def head(self, key: str) -> ListedKey:
        return self.steps.other(f"head {key}", lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        return self.steps.other(
            f"page {prefix}",
            lambda: self.inner.list_page(
                prefix, recursive=recursive, after=after, continuation=continuation, limit=limit
            ),
        )

    def put(self, key: str, data: bytes) -> None:
        self.steps.other(f"put {key}", lambda: self.inner.put(key, data))

    def create(self, key: str, data: bytes) -> None:
        def put() -> Put:
            try:
                self.inner.create(key, data)
            except RequestError as trouble:
                if trouble.kind is not RequestErrorKind.EXISTS:
                    raise
                return Put.EXISTS
            return Put.CREATED

        match self.steps.put(f"create {key}", put):
            case Put.EXISTS:
                raise RequestError(RequestErrorKind.EXISTS, key)
            case Put.UNKNOWN:
                raise RequestError(RequestErrorKind.LOST, key)

    def delete(self, key: str) -> None:
        self.steps.other(f"delete {key}", lambda: self.inner.delete(key))

    def download(self, key: str, to: Path) -> None:
        self.steps.other(f"download {key}", lambda: self.inner.download(key, to))

    def upload(self, source: Path, key: str) -> None:
        self.steps.other(f"upload {key}", lambda: self.inner.upload(source, key))

    def copy(self, key: str, to: str) -> None:
        self.steps.other(f"copy {key}", lambda: self.inner.copy(key, to))


def bucket_store(uri: str, bucket: MemoryBucket, steps: Steps) -> BucketStore:
    place, retry_policy = ObjectUri.parse(uri, redacted=uri), RetryPolicy(sleep=lambda _seconds: None)
    return BucketStore(
        place, StoreOptions.parse("s3", uri, {}), retry_policy=retry_policy, bucket=SteppedBucket(bucket, steps)
    )


def emulated_store(uri: str, options: Mapping[str, str], steps: Steps) -> BucketStore:
    place = ObjectUri.parse(uri, redacted=uri)
    understood = StoreOptions.parse(place.scheme, uri, options)
    bucket = SteppedBucket(cached_client(place.authority, understood.settings), steps)
    return BucketStore(place, understood, bucket=bucket)
