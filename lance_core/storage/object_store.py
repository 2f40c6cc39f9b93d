"""Object store: the `Store` interface on the requests of a `Bucket`. A put is atomic and durable once it is answered.

Every request takes a slot of the bucket's limiter (`request_limiter.py`). Idempotent requests are retried with
back-off. A `create` is sent once: if its answer is lost, or is 409, the outcome
is UNKNOWN, and the caller reads the object to find out. Before the first `create`, `_verify_conditional_put` tests
that the store honours the condition, because some compatible stores accept the header and put the object regardless.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lance_core.errors import LanceError, NotFound, StorageError, Unsupported
from lance_core.storage.buckets.bucket import Bucket, DeletesBatches, ListedKey, ListingPage
from lance_core.storage.concurrency import map_requests
from lance_core.storage.object_uri import SCHEMES, ObjectUri
from lance_core.storage.options import Settings, redact
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.request_limiter import BYTES_MAX, REQUESTS_MAX, RequestLimiter, shared_limiter
from lance_core.storage.secret_references import OptionPairs, StoreOptions
from lance_core.storage.store import (
    ObjectDetails,
    ObjectInfo,
    Put,
    ReportsClockJumps,
    SupportsBatchDelete,
    SupportsConcurrency,
    SupportsOrderedListing,
    SupportsShortWalk,
)

_T = TypeVar("_T")
_RETRYABLE = frozenset((RequestErrorKind.UNREACHED, RequestErrorKind.BUSY, RequestErrorKind.LOST))
_NOT_SENT = frozenset((RequestErrorKind.UNREACHED,))
PAGE_KEYS_MAX = 1000
_PROBE_DIRECTORY = "_lance_assets/probe"
_PROBES_MAX = 8
_verified: set[tuple[str, Settings]] = set()
"""Buckets and settings with which this process has verified conditional puts."""


def forget_verified_buckets() -> None:
    """Forget which buckets this process has verified, so that it verifies them again, as a new process does."""
    _verified.clear()


@dataclass(frozen=True, slots=True)
class ObjectStore(
    SupportsOrderedListing, SupportsShortWalk, SupportsConcurrency, SupportsBatchDelete, ReportsClockJumps
):
    """Directory `location` of an object store."""

    location: ObjectUri
    options: StoreOptions = field(repr=False)
    retry_policy: RetryPolicy = field(default=RetryPolicy(), repr=False, compare=False)

    @classmethod
    def open(cls, location: ObjectUri, options: Mapping[str, str]) -> "ObjectStore":
        """Return the store with parsed options. No request is sent yet."""
        parsed = StoreOptions.parse(location.scheme, location.uri, options)
        settings = parsed.settings
        retry_policy = RetryPolicy(
            seconds_max=settings.get_seconds("retry_timeout", RetryPolicy().seconds_max),
            retries_max=settings.get_int("retries", RetryPolicy().retries_max),
        )
        return cls(location, parsed, retry_policy)

    @property
    def settings(self) -> Settings:
        return self.options.settings

    @property
    def codec_options(self) -> OptionPairs:
        """Storage options for the codec: the caller's options, with references resolved to their current values."""
        return self.options.resolved

    @property
    def description(self) -> str:
        return self.location.uri

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            if self.head(path) is None:
                raise NotFound(f"{self._uri(path)} does not exist")
            return b""
        try:
            return self._send(
                "read", path, lambda bucket, key: bucket.get(key, start, length), received_max=length or BYTES_MAX
            )
        except _NoSuchObject as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error

    def head(self, path: str) -> ObjectInfo | None:
        try:
            return self._details(self._send("read the status of", path, lambda bucket, key: bucket.head(key)))
        except _NoSuchObject:
            return None

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return [*self._list_pages(directory, recursive=False, after=start_after)]

    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        pages = self._list_pages(directory, recursive=False, after=start_after, limit=min(count, PAGE_KEYS_MAX))
        return [*islice(pages, count)]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return [*self._list_pages(directory, recursive=True)]

    def walk_first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        return [*islice(self._list_pages(directory, recursive=True, limit=min(count, PAGE_KEYS_MAX)), count)]

    def list_directories(self, directory: str) -> Sequence[str]:
        """Return the sorted names of the directories directly in a directory."""
        prefix = self.location.key_of(f"{directory}/" if directory else "")
        names: list[str] = []
        continuation: str | None = None
        while True:
            page = self._send("list", directory, _page_request(prefix, False, "", continuation, PAGE_KEYS_MAX))
            names += (key.removeprefix(prefix).rstrip("/") for key in page.directories)
            continuation = page.continuation
            if continuation is None:
                return sorted(name for name in names if name)

    def put(self, path: str, data: bytes) -> None:
        self._send("write", path, lambda bucket, key: bucket.put(key, data), sent=len(data))

    def create(self, path: str, data: bytes) -> Put:
        self._verify_conditional_put()
        return self._create(path, data)

    def delete(self, path: str) -> None:
        try:
            self._send("delete", path, lambda bucket, key: bucket.delete(key))
        except _NoSuchObject:
            return

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete objects in batches, if the service has such a request, and otherwise many at the same time."""
        bucket = self._bucket
        if isinstance(bucket, DeletesBatches) and len(paths) > 1 and bucket.deletes_batches:
            batches = [paths[start : start + bucket.batch_max] for start in range(0, len(paths), bucket.batch_max)]
            paths = [path for rest in map_requests(self, self._delete_batch, batches) for path in rest]
        for _ in map_requests(self, self.delete, paths):
            pass

    @property
    def requests_max(self) -> int:
        return self._limiter.requests_max

    def run_limited(self, request: Callable[[], _T], *, received_max: int) -> _T:
        """Return the answer to a request that the codec sends for its caller, which takes a slot of the bucket's
        limiter."""
        return self._limiter.run(request, received_max=received_max)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Do nothing: an object is durable before its put is answered."""

    def has_clock_jumped_since(self, elapsed_ns: int) -> bool:
        return self._bucket.dates.has_jumped_since(elapsed_ns)

    # Files, of any size

    @property
    def codec_uri(self) -> str:
        return self.location.uri

    def codec_path(self, path: str) -> str:
        """Return the URI of an object."""
        return self._uri(path)

    def without_secrets(self, text: str) -> str:
        """Return the text of another library about this store with the secrets redacted, for messages."""
        return redact(text, self.settings.secrets)

    def create_directory(self, directory: str) -> None:
        """Do nothing: object stores have no directories, only names with slashes."""

    def download(self, path: str, to: Path) -> None:
        try:
            self._send("read", path, lambda bucket, key: bucket.download(key, to))
        except _NoSuchObject as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error

    def begin_upload(self, path: str) -> str:
        """Begin to write an object in parts, and return the identifier of the upload."""
        return self._send("write", path, lambda bucket, key: bucket.begin_upload(key))

    def upload_part(self, path: str, upload_id: str, number: int, data: bytes) -> str:
        """Send a part, whose numbers begin with 1, and return the receipt for it."""
        return self._send(
            "write", path, lambda bucket, key: bucket.upload_part(key, upload_id, number, data), sent=len(data)
        )

    def complete_upload(self, path: str, upload_id: str, receipts: Sequence[str], *, size: int) -> None:
        """Create the object of `size` bytes, or replace it, from its parts. If the answer to the first request is lost,
        the second one finds no upload, and the object itself shows whether the first succeeded."""
        try:
            self._send("write", path, lambda bucket, key: bucket.complete_upload(key, upload_id, receipts))
        except _NoSuchObject as error:
            info = self.head(path)
            if info is None or info.size != size:
                raise StorageError(f"could not write {self._uri(path)}: its parts were lost; write it again") from error

    def abort_upload(self, path: str, upload_id: str) -> None:
        """Discard the parts of an upload, by one request. Parts of an upload that cannot be aborted remain until a
        lifecycle rule of the bucket removes them."""
        with suppress(RequestError):
            self._bucket.abort_upload(self.location.key_of(path), upload_id)

    def copy_within(self, path: str, target: "ObjectStore", to: str) -> bool:
        """Copy an object within one bucket. Return false, without copying, if the target is in another bucket."""
        source, destination = self.location, target.location
        if (source.scheme, source.authority, self.settings) != (
            destination.scheme,
            destination.authority,
            target.settings,
        ):
            return False
        try:
            self._send("copy", path, lambda bucket, key: bucket.copy(key, destination.key_of(to)))
        except _NoSuchObject as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error
        return True

    # Requests

    def _create(self, path: str, data: bytes) -> Put:
        key = self.location.key_of(path)
        try:
            self.retry_policy.run(
                lambda: self._limiter.run(lambda: self._bucket.create(key, data), sent=len(data)), retry_on=_NOT_SENT
            )
        except RequestError as error:
            if error.kind is RequestErrorKind.EXISTS:
                return Put.EXISTS
            if error.kind is RequestErrorKind.BUSY:
                self.retry_policy.back_off(0)
            if error.kind in (RequestErrorKind.BUSY, RequestErrorKind.LOST):
                return Put.UNKNOWN
            raise self._storage_error("write", path, error) from error
        return Put.CREATED

    def _verify_conditional_put(self) -> None:
        """Raise unless the second of two creates of one probe object is rejected. Once per bucket and settings."""
        bucket = (self.location.authority, self.settings)
        if bucket in _verified:
            return
        for attempt in range(_PROBES_MAX):
            path = f"{_PROBE_DIRECTORY}/{uuid.uuid4().hex}"
            first = self._create(path, b"first")
            second = self._create(path, b"second") if first is Put.CREATED else Put.UNKNOWN
            if second is Put.UNKNOWN:
                self.retry_policy.back_off(attempt)
                continue
            is_honoured = second is Put.EXISTS and self.read(path) == b"first"
            with suppress(LanceError):  # a writer without permission to delete can still commit
                self.delete(path)
            if not is_honoured:
                raise Unsupported(
                    f"{self.location.uri}: the store ignores the condition of a conditional put and overwrote an "
                    "existing object. Two writers could both commit the same version, and rows would be lost: put the "
                    "table into a store that honours conditional puts, or reserve its versions elsewhere with "
                    "manifest_store="
                )
            _verified.add(bucket)
            return
        raise StorageError(
            f"{self.location.uri}: the test whether the store honours conditional puts got no answer {_PROBES_MAX} "
            "times; no table data was written. Try again"
        )

    def _list_pages(
        self, directory: str, *, recursive: bool, after: str = "", limit: int = PAGE_KEYS_MAX
    ) -> Iterator[ObjectInfo]:
        """List page by page; `limit` is the size of the first page."""
        prefix = self.location.key_of(f"{directory}/" if directory else "")
        after_key = prefix + after if after else ""
        continuation: str | None = None
        while True:
            page = self._send("list", directory, _page_request(prefix, recursive, after_key, continuation, limit))
            for listed in page.keys:
                if not listed.key.endswith("/"):  # some tools put such objects to represent directories
                    yield self._details(listed)
            continuation, limit = page.continuation, PAGE_KEYS_MAX
            if continuation is None:
                return

    def _delete_batch(self, paths: Sequence[str]) -> Sequence[str]:
        """Delete a batch of objects. Return those that have to be deleted one by one."""
        keys = {self.location.key_of(path): path for path in paths}
        try:
            failed = self._send("delete", paths[0], lambda bucket, _: _delete_keys(bucket, [*keys]))
        except _BatchRefused:
            return paths
        return [keys[key] for key in failed]

    def _send(
        self, action: str, path: str, request: Callable[[Bucket, str], _T], *, sent: int = 0, received_max: int = 0
    ) -> _T:
        """Return the answer to an idempotent request, with retries. `action` is the verb for messages, and the sizes
        are those of the request and of the largest answer to it."""
        key = self.location.key_of(path)
        limiter = self._limiter
        try:
            return self.retry_policy.run(
                lambda: limiter.run(lambda: request(self._bucket, key), sent=sent, received_max=received_max),
                retry_on=_RETRYABLE,
            )
        except RequestError as error:
            if error.kind is RequestErrorKind.ABSENT:
                raise _NoSuchObject from None
            raise self._storage_error(action, path, error) from error

    @property
    def _bucket(self) -> Bucket:
        from lance_core.storage.buckets.client_cache import cached_client  # most processes use no object store

        return cached_client(self.location.authority, self.settings)

    @property
    def _limiter(self) -> RequestLimiter:
        location, settings = self.location, self.settings
        return shared_limiter(
            (location.authority, settings),
            f"{location.scheme}://{location.authority}",
            settings.get_int("requests_max", REQUESTS_MAX),
            settings.get_int("bytes_max", BYTES_MAX),
        )

    def _storage_error(self, action: str, path: str, error: RequestError) -> StorageError:
        advice = {
            RequestErrorKind.FORBIDDEN: (
                "; check the credentials in storage_options or the environment, and their permissions"
            ),
            RequestErrorKind.UNREACHED: "; check the endpoint, the region and the network",
            RequestErrorKind.BUSY: "; try again later, or with fewer concurrent writers",
            RequestErrorKind.LOST: "; try again",
        }.get(error.kind, "")
        return StorageError(f"could not {action} {self._uri(path)} on {SCHEMES[self.location.scheme]}: {error}{advice}")

    def _uri(self, path: str) -> str:
        return f"{self.location.uri}/{path}"

    def _details(self, listed: ListedKey) -> ObjectDetails:
        return ObjectDetails(self.location.path_of(listed.key), listed.size, listed.modified, listed.tag)


def _page_request(
    prefix: str, recursive: bool, after: str, continuation: str | None, limit: int
) -> Callable[[Bucket, str], ListingPage]:
    return lambda bucket, _: bucket.list_page(
        prefix, recursive=recursive, after=after, continuation=continuation, limit=limit
    )


def _delete_keys(bucket: Bucket, keys: Sequence[str]) -> Sequence[str]:
    """Delete a batch of keys. Return those that were not deleted, for a request of their own."""
    assert isinstance(bucket, DeletesBatches)
    try:
        return bucket.delete_batch(keys)
    except RequestError as error:
        if error.kind is RequestErrorKind.REFUSED:
            raise _BatchRefused from error
        raise


class _BatchRefused(Exception):
    """The service does not delete in batches."""


class _NoSuchObject(Exception):
    """The object of a request does not exist. Each method translates this into its own result or error."""
