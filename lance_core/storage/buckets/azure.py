"""Azure's blob storage, through its own client, which sends conditions and can be told to repeat nothing.

The file system that fsspec has for it is not used: it reaches no address without TLS, such as an emulator's, and its
clearing up at exit waits for ever in a process that was forked.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from lance_core.errors import InvalidInput
from lance_core.storage.buckets.bucket import ListedKey, ListingPage
from lance_core.storage.optional_packages import package
from lance_core.storage.options import Settings
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, BlobPrefix, BlobProperties, ContainerClient

_A = TypeVar("_A")
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""No secret: every emulator has this one, and its documentation prints it."""
_TOKEN_SECONDS = 3600
_SINGLE_PUT_BYTES_MAX = 256 * 2**20
_ALREADY_THERE = ("BlobAlreadyExists", "ConditionNotMet")
_CONTAINER_TROUBLE = ("ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled", "AccountIsDisabled")
_DOMAINS = (".dfs.core.windows.net", ".blob.core.windows.net")


@dataclass(frozen=True, slots=True)
class _AzureSdk:
    blob: ModuleType
    errors: ModuleType
    credentials: ModuleType

    @classmethod
    def loaded(cls) -> "_AzureSdk":
        names = ("azure.storage.blob", "azure.core.exceptions", "azure.core.credentials")
        return cls(*(package(name, extra="azure", needed_for="a table at az://") for name in names))


@dataclass(frozen=True, slots=True)
class _Bearer:
    """A token that the caller renews, by opening the table again."""

    token: str = field(repr=False)
    make: Callable[[str, int], object] = field(repr=False)

    def get_token(self, *scopes: str, **kwargs: object) -> object:
        return self.make(self.token, int(time.time()) + _TOKEN_SECONDS)


class _Pages(Iterator[Iterable["BlobProperties | BlobPrefix"]], Protocol):
    """Of a listing; its types in the client's own package say less."""

    continuation_token: str | None


@dataclass(frozen=True, slots=True)
class AzureBucket:
    settings: Settings
    _packages: _AzureSdk = field(repr=False)
    _container: "ContainerClient" = field(repr=False)

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "AzureBucket":
        packages = _AzureSdk.loaded()
        container, account = _named(authority, settings)
        client = packages.blob.ContainerClient(
            account_url=_address(account, settings),
            container_name=container,
            credential=_credential(account, settings, packages),
            connection_timeout=settings.seconds("connect_timeout", _CONNECT_SECONDS),
            read_timeout=settings.seconds("timeout", _ANSWER_SECONDS),
            connection_verify=not settings.flag("allow_invalid_certificates"),
            max_single_put_size=_SINGLE_PUT_BYTES_MAX,
            retry_total=0,
        )
        return cls(settings, packages, client)

    def get(self, key: str, start: int, length: int | None) -> bytes:
        def get() -> bytes:
            if start or length is not None:
                return self._blob(key).download_blob(start, length).readall()
            return self._blob(key).download_blob().readall()

        try:
            return self._done(get)
        except RequestError as trouble:
            if trouble.told == "InvalidRange":
                return b""
            raise

    def head(self, key: str) -> ListedKey:
        def head() -> ListedKey:
            told = self._blob(key).get_blob_properties()
            return ListedKey(key, told.size, told.last_modified, (told.etag or "").strip('"'))

        return self._done(head)

    def page(self, prefix: str, *, deep: bool, after: str, following: str | None, limit: int) -> ListingPage:
        def page() -> ListingPage:
            lister = self._container.list_blobs if deep else self._container.walk_blobs
            pages = cast("_Pages", lister(name_starts_with=prefix, results_per_page=limit).by_page(following))
            items = list(next(pages, ()))
            blobs = [each for each in items if isinstance(each, self._packages.blob.BlobProperties)]
            directories = [each.name for each in items if not isinstance(each, self._packages.blob.BlobProperties)]
            found = [
                ListedKey(each.name, each.size, each.last_modified, (each.etag or "").strip('"'))
                for each in blobs
                if each.name > after
            ]
            return ListingPage(found, pages.continuation_token or None, directories)

        return self._done(page)

    def put(self, key: str, data: bytes) -> None:
        self._done(lambda: self._blob(key).upload_blob(data, overwrite=True))

    def create(self, key: str, data: bytes) -> None:
        """Without `overwrite` the condition is that nothing is there."""
        self._done(lambda: self._blob(key).upload_blob(data, overwrite=False))

    def delete(self, key: str) -> None:
        self._done(lambda: self._blob(key).delete_blob(delete_snapshots="include"))

    def download(self, key: str, to: Path) -> None:
        def download() -> None:
            with to.open("wb") as file:
                self._blob(key).download_blob(retry_total=3).readinto(file)

        self._done(download)

    def upload(self, source: Path, key: str) -> None:
        def upload() -> None:
            with source.open("rb") as file:
                self._blob(key).upload_blob(file, overwrite=True, retry_total=3)

        self._done(upload)

    def copy(self, key: str, to: str) -> None:
        def copy() -> None:
            told = self._blob(to).start_copy_from_url(self._blob(key).url)
            if told["copy_status"] != "success":
                raise RequestError(RequestErrorKind.LOST, f"the copy is {told['copy_status']}")

        self._done(copy)

    def _blob(self, key: str) -> "BlobClient":
        return self._container.get_blob_client(key)

    def _done(self, request: Callable[[], _A]) -> _A:
        errors = self._packages.errors
        try:
            return request()
        except errors.ClientAuthenticationError as error:
            raise RequestError(RequestErrorKind.FORBIDDEN, _code(error) or type(error).__name__) from None
        except errors.HttpResponseError as error:
            raise _trouble(error.status_code or 0, _code(error)) from None
        except errors.ServiceRequestError as error:  # by its definition never sent
            raise RequestError(RequestErrorKind.UNREACHED, self.settings.without_secrets(str(error))) from None
        except (errors.AzureError, OSError) as error:
            raise RequestError(RequestErrorKind.LOST, self.settings.without_secrets(str(error))) from None


def _code(error: Exception) -> str:
    """The service's word for it, a member of an enumeration or a text."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _trouble(status: int, code: str) -> RequestError:
    if code in _ALREADY_THERE:
        return RequestError(RequestErrorKind.EXISTS, code)
    if code in _CONTAINER_TROUBLE or code == "InvalidRange":
        return RequestError(RequestErrorKind.REFUSED, code)
    return RequestError(kind_of_status(status) if status >= 300 else RequestErrorKind.LOST, code)


def _named(authority: str, settings: Settings) -> tuple[str, str]:
    """`container`, or `container@account.dfs.core.windows.net`."""
    container, at, host = authority.partition("@")
    account = settings.get("account")
    if at:
        domain = next((each for each in _DOMAINS if host.endswith(each)), None)
        if domain is None:
            raise InvalidInput(f"{host!r} is no address of an Azure account; it ends with {_DOMAINS[0]}")
        account = host.removesuffix(domain)
    if account is None and settings.flag("emulator"):
        account = _EMULATOR_ACCOUNT
    if account is None:
        raise InvalidInput("which account of Azure is not said; give the storage option azure_storage_account_name")
    return container, account


def _address(account: str, settings: Settings) -> str:
    if settings.flag("emulator"):
        return os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000").rstrip("/") + f"/{account}"
    return settings.endpoint() or f"https://{account}.blob.core.windows.net"


def _credential(account: str, settings: Settings, packages: _AzureSdk) -> object:
    if settings.flag("unsigned"):
        return None
    if key := settings.get("key") or (_EMULATOR_KEY if settings.flag("emulator") else None):
        return {"account_name": account, "account_key": key}
    if sas := settings.get("sas"):
        return packages.credentials.AzureSasCredential(sas.removeprefix("?"))
    if _address(account, settings).startswith("http://"):
        raise InvalidInput(
            "tokens, those of this machine included, are sent to addresses of Azure with TLS alone; give an account "
            "key or a SAS, or azure_skip_signature='true'"
        )
    if token := settings.get("token"):
        return _Bearer(token, packages.credentials.AccessToken)
    identity = package("azure.identity", extra="azure", needed_for="a table at az:// without a key")
    client_id, secret, tenant_id = (settings.get(name) for name in ("client_id", "client_secret", "tenant_id"))
    if client_id and secret and tenant_id:
        return identity.ClientSecretCredential(tenant_id, client_id, secret)
    return identity.DefaultAzureCredential()
