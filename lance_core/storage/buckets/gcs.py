"""Google Cloud Storage by its JSON interface: through the session and the credentials of a gcsfs file system.

gcsfs's own calls are not used: they repeat a put whose answer was lost, and then say "exists" of what they put
themselves.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, cast
from urllib.parse import quote

from lance_core.errors import InvalidInput
from lance_core.storage.buckets.bucket import ListedKey, ListingPage
from lance_core.storage.optional_packages import package
from lance_core.storage.options import Settings, hidden
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status

if TYPE_CHECKING:
    from gcsfs import GCSFileSystem

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_FIELDS = "name,size,updated"
_OUT_OF_RANGE = 416
_TOLD_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class _GcsSdk:
    core: ModuleType
    asyn: ModuleType
    aiohttp: ModuleType
    yarl: ModuleType
    errors: ModuleType
    """Of gcsfs, which it gives to credentials that cannot be renewed."""
    auth: ModuleType
    oauth2: ModuleType

    @classmethod
    def loaded(cls) -> "_GcsSdk":
        auth = ("google.auth.exceptions", "google.oauth2.credentials")
        names = ("gcsfs.core", "fsspec.asyn", "aiohttp", "yarl", "gcsfs.retry")
        return cls(*(package(name, extra="gcs", needed_for="a table at gs://") for name in (*names, *auth)))


class _Object(TypedDict):
    name: str
    size: str
    updated: str


@dataclass(frozen=True, slots=True)
class GcsBucket:
    name: str
    settings: Settings
    _packages: _GcsSdk = field(repr=False)
    _files: "GCSFileSystem" = field(repr=False)
    _secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "GcsBucket":
        packages = _GcsSdk.loaded()
        account = _account(settings)
        secrets = (*settings.secrets, account.get("private_key", ""))
        try:
            files = packages.core.GCSFileSystem(
                project=account.get("project_id", ""),
                token=_token(settings, account, packages),
                endpoint_url=settings.endpoint() or account.get("gcs_base_url"),
                requests_timeout=packages.aiohttp.ClientTimeout(
                    sock_connect=settings.seconds("connect_timeout", _CONNECT_SECONDS),
                    sock_read=settings.seconds("timeout", _ANSWER_SECONDS),
                ),
                use_listings_cache=False,
                skip_instance_cache=True,
            )
        except (OSError, ValueError, KeyError, packages.auth.GoogleAuthError) as error:
            # Its own words may quote the key that could not be read.
            raise RequestError(
                RequestErrorKind.FORBIDDEN,
                f"no usable credentials ({type(error).__name__}); look at google_service_account and the like, or give "
                "google_skip_signature='true' for a public bucket",
            ) from None
        return cls(authority, settings, packages, files, secrets)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"} if start or length is not None else {}
        status, body = self._answer("GET", self._object(key), {"alt": "media"}, headers=headers)
        return b"" if status == _OUT_OF_RANGE else _taken(status, body, self._secrets)

    def head(self, key: str) -> ListedKey:
        return _found(json.loads(self._asked("GET", self._object(key), {"fields": _FIELDS})))

    def page(self, prefix: str, *, deep: bool, after: str, following: str | None, limit: int) -> ListingPage:
        asked = {"prefix": prefix, "maxResults": str(limit), "fields": f"nextPageToken,prefixes,items({_FIELDS})"}
        if not deep:
            asked["delimiter"] = "/"
        if after:
            asked["startOffset"] = after
        if following is not None:
            asked["pageToken"] = following
        answer = json.loads(self._asked("GET", f"{self._place}/storage/v1/b/{_quoted(self.name)}/o", asked))
        found = [_found(each) for each in answer.get("items", ())]
        directories = answer.get("prefixes", ())
        return ListingPage([each for each in found if each.key > after], answer.get("nextPageToken"), directories)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, {})

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, {"ifGenerationMatch": "0"})

    def delete(self, key: str) -> None:
        self._asked("DELETE", self._object(key), {})

    def download(self, key: str, to: Path) -> None:
        self._done(lambda: self._files.get_file(f"{self.name}/{key}", str(to)))

    def upload(self, source: Path, key: str) -> None:
        self._done(lambda: self._files.put_file(str(source), f"{self.name}/{key}"))

    def copy(self, key: str, to: str) -> None:
        self._done(lambda: self._files.cp_file(f"{self.name}/{key}", f"{self.name}/{to}"))

    @property
    def _checks_certificates(self) -> bool:
        return not self.settings.flag("allow_invalid_certificates")

    @property
    def _place(self) -> str:
        return str(self._files.base).removesuffix("/storage/v1/")

    def _object(self, key: str) -> str:
        return f"{self._place}/storage/v1/b/{_quoted(self.name)}/o/{_quoted(key)}"

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> None:
        asked = {"uploadType": "media", "name": key, **condition}
        headers = {"Content-Type": "application/octet-stream"}
        place = f"{self._place}/upload/storage/v1/b/{_quoted(self.name)}/o"
        self._asked("POST", place, asked, headers=headers, data=data)

    def _asked(
        self,
        method: str,
        place: str,
        asked: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> bytes:
        return _taken(*self._answer(method, place, asked, headers=headers, data=data), self._secrets)

    def _answer(
        self,
        method: str,
        place: str,
        asked: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> tuple[int, bytes]:
        answers: list[tuple[int, bytes]] = []
        query = "&".join(f"{name}={_quoted(value)}" for name, value in asked.items())
        url = self._packages.yarl.URL(f"{place}?{query}", encoded=True)
        files = self._files

        async def request() -> None:
            await files._set_session()
            sent = dict(headers or {})
            files.credentials.apply(sent)
            call = files.session.request(
                method, url, headers=sent, data=data, timeout=files.requests_timeout, ssl=self._checks_certificates
            )
            async with call as answer:
                answers.append((answer.status, await answer.read()))

        self._done(lambda: self._packages.asyn.sync(files.loop, request))
        return answers[0]

    def _done(self, request: Callable[[], object]) -> None:
        packages = self._packages
        try:
            request()
        except (packages.auth.TransportError, packages.aiohttp.ClientConnectorError) as error:
            raise RequestError(RequestErrorKind.UNREACHED, hidden(str(error), self._secrets)) from None
        except (packages.auth.GoogleAuthError, packages.errors.NonRetryableError) as error:
            raise RequestError(
                RequestErrorKind.FORBIDDEN, f"the credentials are not accepted ({type(error).__name__})"
            ) from None
        except packages.errors.HttpError as error:
            status = int(error.code) if str(error.code).isdecimal() else 0
            raise RequestError(kind_of_status(status), hidden(str(error), self._secrets)) from None
        except FileNotFoundError:
            raise RequestError(RequestErrorKind.ABSENT, "") from None
        except (OSError, packages.aiohttp.ClientError) as error:
            raise RequestError(
                RequestErrorKind.LOST, hidden(str(error) or type(error).__name__, self._secrets)
            ) from None


def _taken(status: int, body: bytes, secrets: tuple[str, ...]) -> bytes:
    if 200 <= status < 300:
        return body
    try:
        told = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        told = f"HTTP status {status}"
    told = hidden(told, secrets)[:_TOLD_CHARACTERS_MAX]
    if status == 404 and "bucket" in told.lower():
        raise RequestError(RequestErrorKind.REFUSED, told)
    raise RequestError(kind_of_status(status), told)


def _account(settings: Settings) -> Mapping[str, str]:
    """What a service account's key says of itself."""
    text = settings.get("key")
    if text is None:
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise InvalidInput("the storage option google_service_account_key is not the JSON text of a key")
    return {name: str(value) for name, value in told.items() if isinstance(name, str)}


def _token(settings: Settings, account: Mapping[str, str], packages: _GcsSdk) -> object:
    if settings.flag("unsigned") or account.get("disable_oauth") == "True":
        return "anon"
    if bearer := settings.get("token"):
        return cast(object, packages.oauth2.Credentials(bearer))
    return dict(account) or settings.get("key_file") or "google_default"


def _found(told: _Object) -> ListedKey:
    return ListedKey(
        told["name"], int(told["size"]), datetime.fromisoformat(told["updated"]), str(told.get("etag", ""))
    )


def _quoted(text: str) -> str:
    return quote(text, safe="")
