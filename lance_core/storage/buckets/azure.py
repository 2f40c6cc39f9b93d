"""Azure bucket: Azure Blob Storage through azure-storage-blob, with conditional puts and without retries.

adlfs is not used: it reaches no address without TLS, such as that of an emulator, and its cleanup at exit hangs in a
forked process.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from lance_core.errors import InvalidInput
from lance_core.storage.answer_dates import AnswerDates
from lance_core.storage.buckets.bucket import ListedKey, ListingPage
from lance_core.storage.optional_packages import import_package
from lance_core.storage.options import Settings
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status
from lance_core.storage.request_limiter import REQUESTS_MAX

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, BlobPrefix, BlobProperties, ContainerClient

_T = TypeVar("_T")
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Well-known key of every emulator, printed in its documentation; not a secret."""
_TOKEN_SECONDS = 3600
_SINGLE_PUT_BYTES_MAX = 256 * 2**20
_EXISTS_CODES = ("BlobAlreadyExists", "ConditionNotMet")
_CONTAINER_ERROR_CODES = ("ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled", "AccountIsDisabled")
_DOMAINS = (".dfs.core.windows.net", ".blob.core.windows.net")


@dataclass(frozen=True, slots=True)
class _AzureSdk:
    """Modules of the client library, imported on first use."""

    blob: ModuleType
    errors: ModuleType
    credentials: ModuleType
    transport: ModuleType

    @classmethod
    def load(cls) -> "_AzureSdk":
        core = ("azure.core.exceptions", "azure.core.credentials", "azure.core.pipeline.transport")
        names = ("azure.storage.blob", *core)
        return cls(*(import_package(name, extra="azure", needed_for="a table at az://") for name in names))


@dataclass(frozen=True, slots=True)
class _BearerToken:
    """Credential for a fixed bearer token. The caller renews it by opening the table again."""

    token: str = field(repr=False)
    make: Callable[[str, int], object] = field(repr=False)

    def get_token(self, *scopes: str, **kwargs: object) -> object:
        return self.make(self.token, int(time.time()) + _TOKEN_SECONDS)


class _Pages(Iterator[Iterable["BlobProperties | BlobPrefix"]], Protocol):
    """Pages of a listing, typed more precisely than in the client library."""

    continuation_token: str | None


@dataclass(frozen=True, slots=True)
class AzureBucket:
    """Container of Azure Blob Storage."""

    settings: Settings
    _sdk: _AzureSdk = field(repr=False)
    _container: "ContainerClient" = field(repr=False)
    dates: AnswerDates = field(default_factory=AnswerDates, repr=False)

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "AzureBucket":
        sdk = _AzureSdk.load()
        container, account = _container_and_account(authority, settings)
        dates = AnswerDates()
        client = sdk.blob.ContainerClient(
            account_url=_account_url(account, settings),
            container_name=container,
            credential=_credential(account, settings, sdk),
            transport=_transport(_account_url(account, settings), settings, sdk),
            max_single_put_size=_SINGLE_PUT_BYTES_MAX,
            retry_total=0,
            raw_response_hook=lambda answer: dates.record_header(answer.http_response.headers.get("Date")),
        )
        return cls(settings, sdk, client, dates)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        def get() -> bytes:
            if start or length is not None:
                return self._blob(key).download_blob(start, length).readall()
            return self._blob(key).download_blob().readall()

        try:
            return self._run(get)
        except RequestError as error:
            if error.detail == "InvalidRange":
                return b""
            raise

    def head(self, key: str) -> ListedKey:
        def head() -> ListedKey:
            blob = self._blob(key).get_blob_properties()
            return ListedKey(key, blob.size, blob.last_modified, (blob.etag or "").strip('"'))

        return self._run(head)

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        def page() -> ListingPage:
            lister = self._container.list_blobs if recursive else self._container.walk_blobs
            pages = cast("_Pages", lister(name_starts_with=prefix, results_per_page=limit).by_page(continuation))
            items = list(next(pages, ()))
            blobs = [item for item in items if isinstance(item, self._sdk.blob.BlobProperties)]
            directories = [item.name for item in items if not isinstance(item, self._sdk.blob.BlobProperties)]
            keys = [
                ListedKey(blob.name, blob.size, blob.last_modified, (blob.etag or "").strip('"'))
                for blob in blobs
                if blob.name > after
            ]
            return ListingPage(keys, pages.continuation_token or None, directories)

        return self._run(page)

    def put(self, key: str, data: bytes) -> None:
        self._run(lambda: self._blob(key).upload_blob(data, overwrite=True))

    def create(self, key: str, data: bytes) -> None:
        """Put the blob only if none exists: `overwrite=False` sends that condition."""
        self._run(lambda: self._blob(key).upload_blob(data, overwrite=False))

    def delete(self, key: str) -> None:
        self._run(lambda: self._blob(key).delete_blob(delete_snapshots="include"))

    def download(self, key: str, to: Path) -> None:
        def download() -> None:
            with to.open("wb") as file:
                self._blob(key).download_blob(retry_total=3).readinto(file)

        self._run(download)

    def begin_upload(self, key: str) -> str:
        """Return an identifier for the names of the blocks. The service needs no request."""
        return uuid.uuid4().hex

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        block = f"{upload_id}-{number:06}"
        self._run(lambda: self._blob(key).stage_block(block, data))
        return block

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        blocks = [self._sdk.blob.BlobBlock(block) for block in receipts]
        self._run(lambda: self._blob(key).commit_block_list(blocks))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Do nothing: the service discards blocks that are not used within a week."""

    def copy(self, key: str, to: str) -> None:
        def copy() -> None:
            copied = self._blob(to).start_copy_from_url(self._blob(key).url)
            if copied["copy_status"] != "success":
                raise RequestError(RequestErrorKind.LOST, f"the status of the copy is {copied['copy_status']}")

        self._run(copy)

    def _blob(self, key: str) -> "BlobClient":
        return self._container.get_blob_client(key)

    def _run(self, request: Callable[[], _T]) -> _T:
        """Run a request, and translate the errors of the client library into a `RequestError`."""
        errors = self._sdk.errors
        try:
            return request()
        except errors.ClientAuthenticationError as error:
            raise RequestError(RequestErrorKind.FORBIDDEN, _error_code(error) or type(error).__name__) from None
        except errors.HttpResponseError as error:
            raise _request_error(error.status_code or 0, _error_code(error)) from None
        except errors.ServiceRequestError as error:  # defined as a request that was never sent
            raise RequestError(RequestErrorKind.UNREACHED, self.settings.without_secrets(str(error))) from None
        except (errors.AzureError, OSError) as error:
            raise RequestError(RequestErrorKind.LOST, self.settings.without_secrets(str(error))) from None


def _error_code(error: Exception) -> str:
    """Return the error code of the service, which the library gives as an enumeration member or as a string."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _request_error(status: int, code: str) -> RequestError:
    if code in _EXISTS_CODES:
        return RequestError(RequestErrorKind.EXISTS, code)
    if code in _CONTAINER_ERROR_CODES or code == "InvalidRange":
        return RequestError(RequestErrorKind.REFUSED, code)
    return RequestError(kind_of_status(status) if status >= 300 else RequestErrorKind.LOST, code)


def _container_and_account(authority: str, settings: Settings) -> tuple[str, str]:
    """Return container and account for `container` or `container@account.dfs.core.windows.net`."""
    container, at, host = authority.partition("@")
    account = settings.get("account")
    if at:
        domain = next((suffix for suffix in _DOMAINS if host.endswith(suffix)), None)
        if domain is None:
            raise InvalidInput(f"{host!r} is not the address of an Azure account, which ends with {_DOMAINS[0]}")
        account = host.removesuffix(domain)
    if account is None and settings.get_flag("emulator"):
        account = _EMULATOR_ACCOUNT
    if account is None:
        raise InvalidInput("the Azure account is missing; set the storage option azure_storage_account_name")
    return container, account


def _account_url(account: str, settings: Settings) -> str:
    if settings.get_flag("emulator"):
        return os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000").rstrip("/") + f"/{account}"
    return settings.get_endpoint() or f"https://{account}.blob.core.windows.net"


def _transport(url: str, settings: Settings, sdk: _AzureSdk) -> object:
    """Return the HTTP transport, with as many connections as requests may be in flight; its default is 10."""
    transport = sdk.transport.RequestsTransport(
        connection_timeout=settings.get_seconds("connect_timeout", _CONNECT_SECONDS),
        read_timeout=settings.get_seconds("timeout", _ANSWER_SECONDS),
        connection_verify=not settings.get_flag("allow_invalid_certificates"),
    )
    transport.open()
    transport.session.get_adapter(url).init_poolmanager(1, settings.get_int("requests_max", REQUESTS_MAX))
    return cast(object, transport)


def _credential(account: str, settings: Settings, sdk: _AzureSdk) -> object:
    if settings.get_flag("unsigned"):
        return None
    if key := settings.get("key") or (_EMULATOR_KEY if settings.get_flag("emulator") else None):
        return {"account_name": account, "account_key": key}
    if sas := settings.get("sas"):
        return sdk.credentials.AzureSasCredential(sas.removeprefix("?"))
    if _account_url(account, settings).startswith("http://"):
        raise InvalidInput(
            "tokens, including those of this machine's identity, are sent to Azure only over TLS; set an account key "
            "or a SAS, or azure_skip_signature='true'"
        )
    if token := settings.get("token"):
        return _BearerToken(token, sdk.credentials.AccessToken)
    identity = import_package("azure.identity", extra="azure", needed_for="a table at az:// without a key")
    client_id, secret, tenant_id = (settings.get(name) for name in ("client_id", "client_secret", "tenant_id"))
    if client_id and secret and tenant_id:
        return identity.ClientSecretCredential(tenant_id, client_id, secret)
    return identity.DefaultAzureCredential()
