"""Google Cloud Storage bucket: the JSON API through the HTTP session and the credentials of a gcsfs file system.

The calls of gcsfs for small objects are not used: after a lost response, they repeat a conditional put, and then
report the object that the first request created as an existing one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, cast
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from lance_core.errors import InvalidInput
from lance_core.storage.answer_dates import AnswerDates
from lance_core.storage.buckets.bucket import ListedKey, ListingPage
from lance_core.storage.optional_packages import import_package
from lance_core.storage.options import Settings, redact
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status

if TYPE_CHECKING:
    from gcsfs import GCSFileSystem

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_FIELDS = "name,size,updated,etag"
_RANGE_NOT_SATISFIABLE = 416
_MESSAGE_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class _GcsSdk:
    """Modules of the client libraries, imported on first use."""

    core: ModuleType
    asyn: ModuleType
    aiohttp: ModuleType
    yarl: ModuleType
    errors: ModuleType
    """`gcsfs.retry`, whose `NonRetryableError` reports credentials that cannot be renewed."""
    auth: ModuleType
    oauth2: ModuleType

    @classmethod
    def load(cls) -> "_GcsSdk":
        auth = ("google.auth.exceptions", "google.oauth2.credentials")
        names = ("gcsfs.core", "fsspec.asyn", "aiohttp", "yarl", "gcsfs.retry")
        return cls(*(import_package(name, extra="gcs", needed_for="a table at gs://") for name in (*names, *auth)))


class _Object(TypedDict):
    """Object resource of the JSON API, with the fields that requests ask for."""

    name: str
    size: str
    updated: str


@dataclass(frozen=True, slots=True)
class GcsBucket:
    """Bucket of Google Cloud Storage."""

    name: str
    settings: Settings
    _sdk: _GcsSdk = field(repr=False)
    _filesystem: "GCSFileSystem" = field(repr=False)
    _secrets: tuple[str, ...] = field(repr=False)
    dates: AnswerDates = field(default_factory=AnswerDates, repr=False)

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "GcsBucket":
        sdk = _GcsSdk.load()
        account = _service_account(settings)
        secrets = (*settings.secrets, account.get("private_key", ""))
        try:
            filesystem = sdk.core.GCSFileSystem(
                project=account.get("project_id", ""),
                token=_token(settings, account, sdk),
                endpoint_url=settings.get_endpoint() or account.get("gcs_base_url"),
                requests_timeout=sdk.aiohttp.ClientTimeout(
                    sock_connect=settings.get_seconds("connect_timeout", _CONNECT_SECONDS),
                    sock_read=settings.get_seconds("timeout", _ANSWER_SECONDS),
                ),
                use_listings_cache=False,
                skip_instance_cache=True,
            )
        except (OSError, ValueError, KeyError, sdk.auth.GoogleAuthError) as error:
            # The message of the library may quote the key that it could not parse.
            raise RequestError(
                RequestErrorKind.FORBIDDEN,
                f"no usable credentials ({type(error).__name__}); check the storage options google_service_account and "
                "google_service_account_key, or set google_skip_signature='true' for a public bucket",
            ) from None
        return cls(authority, settings, sdk, filesystem, secrets)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"} if start or length is not None else {}
        answer = self._send("GET", self._object_url(key), {"alt": "media"}, headers=headers)
        return b"" if answer.status == _RANGE_NOT_SATISFIABLE else _body_or_error(answer, self._secrets)

    def head(self, key: str) -> ListedKey:
        return _listed_key(json.loads(self._request("GET", self._object_url(key), {"fields": _FIELDS})))

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        parameters = {"prefix": prefix, "maxResults": str(limit), "fields": f"nextPageToken,prefixes,items({_FIELDS})"}
        if not recursive:
            parameters["delimiter"] = "/"
        if after:
            parameters["startOffset"] = after
        if continuation is not None:
            parameters["pageToken"] = continuation
        page = json.loads(self._request("GET", f"{self._endpoint}/storage/v1/b/{_quote(self.name)}/o", parameters))
        keys = [_listed_key(item) for item in page.get("items", ())]  # `startOffset` itself is included in the page
        directories = page.get("prefixes", ())
        return ListingPage([listed for listed in keys if listed.key > after], page.get("nextPageToken"), directories)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, {})

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, {"ifGenerationMatch": "0"})

    def delete(self, key: str) -> None:
        self._request("DELETE", self._object_url(key), {})

    def download(self, key: str, to: Path) -> None:
        self._run(lambda: self._filesystem.get_file(f"{self.name}/{key}", str(to)))

    def begin_upload(self, key: str) -> str:
        answer = self._request("POST", self._xml_url(key), {"uploads": ""}, data=b"").decode(errors="replace")
        identifier = re.search("<UploadId>([^<]+)</UploadId>", answer)
        if identifier is None:
            raise RequestError(RequestErrorKind.LOST, "the answer has no identifier of an upload")
        return unescape(identifier[1])

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        parameters = {"partNumber": str(number), "uploadId": upload_id}
        answer = self._send("PUT", self._xml_url(key), parameters, data=data)
        _body_or_error(answer, self._secrets)
        return answer.etag

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(receipts, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        self._request("POST", self._xml_url(key), {"uploadId": upload_id}, data=body)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._request("DELETE", self._xml_url(key), {"uploadId": upload_id})

    def copy(self, key: str, to: str) -> None:
        self._run(lambda: self._filesystem.cp_file(f"{self.name}/{key}", f"{self.name}/{to}"))

    @property
    def _checks_certificates(self) -> bool:
        return not self.settings.get_flag("allow_invalid_certificates")

    @property
    def _endpoint(self) -> str:
        return str(self._filesystem.base).removesuffix("/storage/v1/")

    def _object_url(self, key: str) -> str:
        return f"{self._endpoint}/storage/v1/b/{_quote(self.name)}/o/{_quote(key)}"

    def _xml_url(self, key: str) -> str:
        """Return the URL of an object in the XML interface, which alone has uploads of parts in parallel."""
        return f"{self._endpoint}/{_quote(self.name)}/{_quote(key)}"

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> None:
        parameters = {"uploadType": "media", "name": key, **condition}
        headers = {"Content-Type": "application/octet-stream"}
        url = f"{self._endpoint}/upload/storage/v1/b/{_quote(self.name)}/o"
        self._request("POST", url, parameters, headers=headers, data=data)

    def _request(
        self,
        method: str,
        url: str,
        parameters: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> bytes:
        return _body_or_error(self._send(method, url, parameters, headers=headers, data=data), self._secrets)

    def _send(
        self,
        method: str,
        url: str,
        parameters: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> "_Response":
        responses: list[_Response] = []
        query = "&".join(f"{name}={_quote(value)}" for name, value in parameters.items())
        full_url = self._sdk.yarl.URL(f"{url}?{query}", encoded=True)
        filesystem = self._filesystem

        async def request() -> None:
            await filesystem._set_session()
            all_headers = dict(headers or {})
            filesystem.credentials.apply(all_headers)
            call = filesystem.session.request(
                method,
                full_url,
                headers=all_headers,
                data=data,
                timeout=filesystem.requests_timeout,
                ssl=self._checks_certificates,
            )
            async with call as response:
                self.dates.record_header(response.headers.get("Date"))
                etag = response.headers.get("ETag", "")
                responses.append(_Response(response.status, await response.read(), etag))

        self._run(lambda: self._sdk.asyn.sync(filesystem.loop, request))
        return responses[0]

    def _run(self, request: Callable[[], object]) -> None:
        """Run a request, and translate the errors of the client libraries into a `RequestError`."""
        sdk = self._sdk
        try:
            request()
        except (sdk.auth.TransportError, sdk.aiohttp.ClientConnectorError) as error:
            raise RequestError(RequestErrorKind.UNREACHED, redact(str(error), self._secrets)) from None
        except (sdk.auth.GoogleAuthError, sdk.errors.NonRetryableError) as error:
            raise RequestError(
                RequestErrorKind.FORBIDDEN, f"the credentials are not accepted ({type(error).__name__})"
            ) from None
        except sdk.errors.HttpError as error:
            status = int(error.code) if str(error.code).isdecimal() else 0
            raise RequestError(kind_of_status(status), redact(str(error), self._secrets)) from None
        except FileNotFoundError:
            raise RequestError(RequestErrorKind.ABSENT, "") from None
        except (OSError, sdk.aiohttp.ClientError) as error:
            raise RequestError(
                RequestErrorKind.LOST, redact(str(error) or type(error).__name__, self._secrets)
            ) from None


@dataclass(frozen=True, slots=True)
class _Response:
    """Answer to a request."""

    status: int
    body: bytes
    etag: str


def _body_or_error(response: _Response, secrets: tuple[str, ...]) -> bytes:
    status, body = response.status, response.body
    if 200 <= status < 300:
        return body
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP status {status}"
    message = redact(message, secrets)[:_MESSAGE_CHARACTERS_MAX]
    if status == 404 and "bucket" in message.lower():
        raise RequestError(RequestErrorKind.REFUSED, message)
    raise RequestError(kind_of_status(status), message)


def _service_account(settings: Settings) -> Mapping[str, str]:
    """Return the parsed service account key from the options; an empty mapping if there is none."""
    text = settings.get("key")
    if text is None:
        return {}
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict):
        raise InvalidInput("the storage option google_service_account_key must be the JSON text of a key")
    return {name: str(value) for name, value in key.items() if isinstance(name, str)}


def _token(settings: Settings, account: Mapping[str, str], sdk: _GcsSdk) -> object:
    if settings.get_flag("unsigned") or account.get("disable_oauth") == "True":
        return "anon"
    if bearer := settings.get("token"):
        return cast(object, sdk.oauth2.Credentials(bearer))
    return dict(account) or settings.get("key_file") or "google_default"


def _listed_key(item: _Object) -> ListedKey:
    return ListedKey(
        item["name"], int(item["size"]), datetime.fromisoformat(item["updated"]), str(item.get("etag", ""))
    )


def _quote(text: str) -> str:
    return quote(text, safe="")
