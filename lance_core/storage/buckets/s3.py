"""S3, and what speaks its language, through Amazon's own client, told to send each request once.

The file system that fsspec has for it is not used: it repeats a put whose answer was lost, and so does the HTTP client
below it, even where nobody asks it to; then it says "exists" of what it put itself. It also calls by one name what must
be told apart, 409 and 412.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from lance_core.storage.buckets.bucket import ListedKey, ListingPage
from lance_core.storage.optional_packages import package
from lance_core.storage.options import Settings
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status

if TYPE_CHECKING:
    from botocore.client import BaseClient

_A = TypeVar("_A")
_CONNECTIONS_MAX = 32
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_REGION = "us-east-1"
"""Where an endpoint is given, it is only a word in signatures."""
_BUSY = ("SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests")
_OUT_OF_RANGE = "InvalidRange"
_WITHOUT_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOError",
    "LoginError",
)
_NEVER_SENT = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError")
_NEVER_MADE = ("ParamValidationError", "BaseEndpointResolverError", "ValidationError")


@dataclass(frozen=True, slots=True)
class _S3Sdk:
    session: ModuleType
    boto_errors: ModuleType
    config: ModuleType
    unsigned: ModuleType
    errors: ModuleType
    http: ModuleType
    handlers: ModuleType

    @classmethod
    def loaded(cls) -> "_S3Sdk":
        names = ("boto3.session", "boto3.exceptions", "botocore.config", "botocore", "botocore.exceptions")
        more = ("urllib3.exceptions", "botocore.handlers")
        return cls(*(package(name, extra="s3", needed_for="a table at s3://") for name in (*names, *more)))


@dataclass(frozen=True, slots=True)
class S3Bucket:
    name: str
    settings: Settings
    _packages: _S3Sdk = field(repr=False)
    _client: "BaseClient" = field(repr=False)
    _always: dict[str, str] = field(repr=False)
    """Goes with every request about an object."""
    _with_puts: dict[str, object] = field(repr=False)

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "S3Bucket":
        packages = _S3Sdk.loaded()
        endpoint = settings.endpoint()
        try:
            session = packages.session.Session(
                aws_access_key_id=settings.get("key_id"),
                aws_secret_access_key=settings.get("key"),
                aws_session_token=settings.get("token"),
                region_name=settings.get("region"),
            )
            client = session.client(
                "s3",
                region_name=session.region_name or _REGION,
                endpoint_url=endpoint,
                verify=False if settings.flag("allow_invalid_certificates") else None,
                config=packages.config.Config(**_config(settings, endpoint, packages)),
            )
        except (packages.errors.BotoCoreError, ValueError) as error:
            raise RequestError(_kind(error), settings.without_secrets(str(error))) from None
        # Each put would ask first whether it may be sent: one way and back more, for objects that are small.
        client.meta.events.unregister("before-call.s3", packages.handlers.add_expect_header)
        payer = {"RequestPayer": "requester"} if settings.flag("requester_pays") else {}
        return cls(authority, settings, packages, client, {"Bucket": authority, **payer}, payer | _encryption(settings))

    def get(self, key: str, start: int, length: int | None) -> bytes:
        end = "" if length is None else str(start + length - 1)
        asked = {"Range": f"bytes={start}-{end}"} if start or length is not None else {}

        def get() -> bytes:
            answer = self._client.get_object(Key=key, **self._always, **asked)
            with answer["Body"] as body:
                data: bytes = body.read()
            if len(data) != answer["ContentLength"]:
                raise RequestError(RequestErrorKind.LOST, f"{len(data)} of {answer['ContentLength']} bytes came")
            return data

        try:
            return self._done(get)
        except RequestError as trouble:
            if trouble.told == _OUT_OF_RANGE:
                return b""
            raise

    def head(self, key: str) -> ListedKey:
        answer = self._done(lambda: self._client.head_object(Key=key, **self._always))
        return ListedKey(key, answer["ContentLength"], answer["LastModified"], answer.get("ETag", ""))

    def page(self, prefix: str, *, deep: bool, after: str, following: str | None, limit: int) -> ListingPage:
        asked: dict[str, object] = {"Prefix": prefix, "MaxKeys": limit}
        if not deep:
            asked["Delimiter"] = "/"
        if following is not None:
            asked["ContinuationToken"] = following
        elif after:
            asked["StartAfter"] = after
        answer = self._done(lambda: self._client.list_objects_v2(**self._always, **asked))
        found = [
            ListedKey(each["Key"], each["Size"], each["LastModified"], each.get("ETag", ""))
            for each in answer.get("Contents", ())
        ]
        directories = [each["Prefix"] for each in answer.get("CommonPrefixes", ())]
        return ListingPage(found, answer["NextContinuationToken"] if answer.get("IsTruncated") else None, directories)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, {})

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, {"IfNoneMatch": "*"})

    def delete(self, key: str) -> None:
        self._done(lambda: self._client.delete_object(Key=key, **self._always))

    def download(self, key: str, to: Path) -> None:
        self._done(lambda: self._client.download_file(self.name, key, str(to)))

    def upload(self, source: Path, key: str) -> None:
        self._done(lambda: self._client.upload_file(str(source), self.name, key, ExtraArgs=self._with_puts))

    def copy(self, key: str, to: str) -> None:
        source = {"Bucket": self.name, "Key": key}
        self._done(lambda: self._client.copy(source, self.name, to, ExtraArgs=self._with_puts))

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> None:
        asked = {"Bucket": self.name, "Key": key, "Body": data, **self._with_puts, **condition}
        self._done(lambda: self._client.put_object(**asked))

    def _done(self, request: Callable[[], _A]) -> _A:
        errors = self._packages.errors
        try:
            return request()
        except errors.ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise _trouble(status, code) from None
        except (errors.BotoCoreError, ValueError) as error:
            raise RequestError(_kind(error), self.settings.without_secrets(str(error))) from None
        except (OSError, self._packages.boto_errors.Boto3Error, self._packages.http.HTTPError) as error:
            # A body that breaks off is told of by the HTTP library itself.
            raise RequestError(RequestErrorKind.LOST, self.settings.without_secrets(str(error))) from None


def _config(settings: Settings, endpoint: str | None, packages: _S3Sdk) -> dict[str, object]:
    config: dict[str, object] = {
        "connect_timeout": settings.seconds("connect_timeout", _CONNECT_SECONDS),
        "read_timeout": settings.seconds("timeout", _ANSWER_SECONDS),
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": _CONNECTIONS_MAX,
    }
    if settings.flag("virtual_hosted"):
        config["s3"] = {"addressing_style": "virtual"}
    elif endpoint:
        config["s3"] = {"addressing_style": "path"}
    if endpoint:  # others than Amazon may not know its newer checksums
        config["request_checksum_calculation"] = "when_required"
        config["response_checksum_validation"] = "when_required"
    if settings.flag("unsigned"):
        config["signature_version"] = packages.unsigned.UNSIGNED
    return config


def _encryption(settings: Settings) -> dict[str, object]:
    asked: dict[str, object] = {}
    if kind := settings.get("encryption"):
        asked["ServerSideEncryption"] = kind
    if kms_key := settings.get("kms_key"):
        asked["SSEKMSKeyId"] = kms_key
    if settings.flag("bucket_key"):
        asked["BucketKeyEnabled"] = True
    return asked


def _trouble(status: int, code: str) -> RequestError:
    if code in ("NoSuchBucket", _OUT_OF_RANGE):
        return RequestError(RequestErrorKind.REFUSED, code)
    if code == "ExpiredToken":
        return RequestError(RequestErrorKind.FORBIDDEN, code)
    if code in _BUSY:
        return RequestError(RequestErrorKind.BUSY, code)
    return RequestError(kind_of_status(status) if status >= 300 else RequestErrorKind.LOST, code)


def _kind(error: Exception) -> RequestErrorKind:
    names = {each.__name__ for each in type(error).__mro__}
    if names.intersection(_WITHOUT_CREDENTIALS):
        return RequestErrorKind.FORBIDDEN
    if names.intersection(_NEVER_SENT):
        return RequestErrorKind.UNREACHED
    if names.intersection(_NEVER_MADE) or type(error) is ValueError:
        return RequestErrorKind.REFUSED
    return RequestErrorKind.LOST
