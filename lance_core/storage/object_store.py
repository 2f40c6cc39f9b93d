"""A directory in an object store, where an answer is durable and a put is seen whole or not at all.

What lives here: the contract of `Store` kept with the requests of a `Bucket`. Whatever can be asked again is, with
patience. A `create` is sent once: an answer that was lost on the way, or 409, is UNKNOWN, and the caller looks.
Before the first one the store has to prove that it honours the condition (`_prove`): many that speak a store's
language parse it and put all the same.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lance_core.errors import LanceError, NotFound, StorageError, Unsupported
from lance_core.storage.buckets.bucket import Bucket, ListedKey, ListingPage
from lance_core.storage.object_uri import SCHEMES, ObjectUri
from lance_core.storage.options import Settings, hidden
from lance_core.storage.request_errors import RequestError, RequestErrorKind, RetryPolicy
from lance_core.storage.secret_references import StoreOptions, Told
from lance_core.storage.store import ObjectDetails, ObjectInfo, Put, SupportsOrderedListing

_A = TypeVar("_A")
_AGAIN = frozenset((RequestErrorKind.UNREACHED, RequestErrorKind.BUSY, RequestErrorKind.LOST))
_NOT_SENT = frozenset((RequestErrorKind.UNREACHED,))
_PAGE = 1000
_PROBES = "_lance_assets/probe"
_PROBES_MAX = 5
_proven: set[tuple[str, Settings]] = set()
"""Buckets, and the ways to reach them, whose conditions this process has seen at work."""


@dataclass(frozen=True, slots=True)
class ObjectStore(SupportsOrderedListing):
    place: ObjectUri
    options: StoreOptions = field(repr=False)
    patience: RetryPolicy = field(default=RetryPolicy(), repr=False, compare=False)

    @classmethod
    def at(cls, place: ObjectUri, options: Mapping[str, str]) -> "ObjectStore":
        found = StoreOptions.of(place.scheme, place.uri, options)
        understood = found.settings
        patience = RetryPolicy(
            seconds_max=understood.seconds("patience", RetryPolicy().seconds_max),
            repeats_max=understood.number("repeats", RetryPolicy().repeats_max),
        )
        return cls(place, found, patience)

    @property
    def settings(self) -> Settings:
        return self.options.settings

    @property
    def given(self) -> Told:
        """The options as the caller gave them, which the codec understands by itself; where it gave names, what they
        stand for now."""
        return self.options.given

    @property
    def description(self) -> str:
        return self.place.uri

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            if self.head(path) is None:
                raise NotFound(f"{self._uri(path)} does not exist")
            return b""
        try:
            return self._ask("read", path, lambda bucket, key: bucket.get(key, start, length))
        except _Absent as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error

    def head(self, path: str) -> ObjectInfo | None:
        try:
            return self._info(self._ask("look at", path, lambda bucket, key: bucket.head(key)))
        except _Absent:
            return None

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return [*self._listed(directory, deep=False, after=start_after)]

    def first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        return [*islice(self._listed(directory, deep=False, limit=count), count)]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return [*self._listed(directory, deep=True)]

    def directories(self, directory: str) -> Sequence[str]:
        """The names of those right in a directory, in their order."""
        prefix = self.place.key(f"{directory}/" if directory else "")
        found: list[str] = []
        following: str | None = None
        while True:
            page = self._ask("list", directory, _page_of(prefix, False, "", following, _PAGE))
            found += (each.removeprefix(prefix).rstrip("/") for each in page.directories)
            following = page.following
            if following is None:
                return sorted(name for name in found if name)

    def put(self, path: str, data: bytes) -> None:
        self._ask("write", path, lambda bucket, key: bucket.put(key, data))

    def create(self, path: str, data: bytes) -> Put:
        self._prove()
        return self._create(path, data)

    def delete(self, path: str) -> None:
        try:
            self._ask("delete", path, lambda bucket, key: bucket.delete(key))
        except _Absent:
            return

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """An object is durable before its put is answered."""

    # Files, of any size

    @property
    def base(self) -> str:
        return self.place.uri

    def inside(self, path: str) -> str:
        return self._uri(path)

    def without_secrets(self, text: str) -> str:
        """What another library says of this place, fit for a message."""
        return hidden(text, self.settings.secrets)

    def make_directory(self, directory: str) -> None:
        """There are none: a name may have slashes in it."""

    def download(self, path: str, to: Path) -> None:
        try:
            self._ask("read", path, lambda bucket, key: bucket.download(key, to))
        except _Absent as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error

    def upload(self, source: Path, path: str) -> None:
        self._ask("write", path, lambda bucket, key: bucket.upload(source, key))

    def copy_within(self, path: str, target: "ObjectStore", to: str) -> bool:
        """False where the two are not in one bucket, and nothing was done."""
        here, there = self.place, target.place
        if (here.scheme, here.authority, self.settings) != (there.scheme, there.authority, target.settings):
            return False
        try:
            self._ask("copy", path, lambda bucket, key: bucket.copy(key, there.key(to)))
        except _Absent as error:
            raise NotFound(f"{self._uri(path)} does not exist") from error
        return True

    # Asking

    def _create(self, path: str, data: bytes) -> Put:
        key = self.place.key(path)
        try:
            self.patience.run(lambda: self._bucket.create(key, data), again=_NOT_SENT)
        except RequestError as trouble:
            if trouble.kind is RequestErrorKind.EXISTS:
                return Put.EXISTS
            if trouble.kind is RequestErrorKind.BUSY:
                self.patience.wait(0)
            if trouble.kind in (RequestErrorKind.BUSY, RequestErrorKind.LOST):
                return Put.UNKNOWN
            raise self._failed("write", path, trouble) from trouble
        return Put.CREATED

    def _prove(self) -> None:
        proof = (self.place.authority, self.settings)
        if proof in _proven:
            return
        for _ in range(_PROBES_MAX):
            path = f"{_PROBES}/{uuid.uuid4().hex}"
            first, second = self._create(path, b"first"), self._create(path, b"second")
            if Put.UNKNOWN in (first, second) or first is Put.EXISTS:
                continue
            held = second is Put.EXISTS and self.read(path) == b"first"
            with suppress(LanceError):  # whoever may not delete can still commit
                self.delete(path)
            if not held:
                raise Unsupported(
                    f"{self.place.uri}: the store put a second object where one was, though it was asked to put it "
                    "only if nothing was there. Of two writers both would believe that they were first, and rows "
                    "would be lost: put the table into a store that honours conditional puts, or "
                    "have its versions reserved elsewhere, with manifest_store="
                )
            _proven.add(proof)
            return
        raise StorageError(
            f"{self.place.uri}: whether the store honours conditional puts could not be found out, since it did not "
            f"answer {_PROBES_MAX} times; nothing was written. Try again"
        )

    def _listed(self, directory: str, *, deep: bool, after: str = "", limit: int = _PAGE) -> Iterator[ObjectInfo]:
        prefix = self.place.key(f"{directory}/" if directory else "")
        last = prefix + after if after else ""
        following: str | None = None
        while True:
            page = self._ask("list", directory, _page_of(prefix, deep, last, following, limit))
            for found in page.found:
                if not found.key.endswith("/"):  # what some tools put to show a directory
                    yield self._info(found)
            following, limit = page.following, _PAGE
            if following is None:
                return

    def _ask(self, what: str, path: str, request: Callable[[Bucket, str], _A]) -> _A:
        key = self.place.key(path)
        try:
            return self.patience.run(lambda: request(self._bucket, key), again=_AGAIN)
        except RequestError as trouble:
            if trouble.kind is RequestErrorKind.ABSENT:
                raise _Absent from None
            raise self._failed(what, path, trouble) from trouble

    @property
    def _bucket(self) -> Bucket:
        from lance_core.storage.buckets.client_cache import cached_client  # of services that most processes never meet

        return cached_client(self.place.authority, self.settings)

    def _failed(self, what: str, path: str, trouble: RequestError) -> StorageError:
        advice = {
            RequestErrorKind.FORBIDDEN: (
                "; check the credentials in storage_options or the environment, and what they permit"
            ),
            RequestErrorKind.UNREACHED: "; check the endpoint, the region and the network",
            RequestErrorKind.BUSY: "; try again later, or with fewer writers at once",
            RequestErrorKind.LOST: "; try again",
        }.get(trouble.kind, "")
        return StorageError(f"could not {what} {self._uri(path)} on {SCHEMES[self.place.scheme]}: {trouble}{advice}")

    def _uri(self, path: str) -> str:
        return f"{self.place.uri}/{path}"

    def _info(self, found: ListedKey) -> ObjectDetails:
        return ObjectDetails(self.place.path(found.key), found.size, found.modified, found.tag)


def _page_of(
    prefix: str, deep: bool, after: str, following: str | None, limit: int
) -> Callable[[Bucket, str], ListingPage]:
    return lambda bucket, _: bucket.page(prefix, deep=deep, after=after, following=following, limit=limit)


class _Absent(Exception):
    """There is no such object: what that means, each call says by itself."""
