"""S3 bucket: Amazon S3 and compatible services through boto3, configured to send each request once.

s3fs is not used: it retries a put whose answer was lost, and so does the HTTP client below it, even if retries are not
configured; the retry then reports its own object as existing. It also reports 409 and 412 as the same error, although
only 412 means that an object exists.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from lance_core.storage.answer_dates import AnswerDates
from lance_core.storage.buckets.bucket import DeletesBatches, ListedKey, ListingPage
from lance_core.storage.buckets.s3_listing import read_objects
from lance_core.storage.optional_packages import import_package
from lance_core.storage.options import Settings
from lance_core.storage.request_errors import RequestError, RequestErrorKind, kind_of_status
from lance_core.storage.request_limiter import REQUESTS_MAX

if TYPE_CHECKING:
    from botocore.client import BaseClient

_T = TypeVar("_T")
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_REGION = "us-east-1"
"""Default region. With an explicit endpoint, the region only matters for signatures."""
_BUSY_CODES = ("SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests")
_OUT_OF_RANGE = "InvalidRange"
_CREDENTIAL_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOError",
    "LoginError",
)
_CONNECTION_ERRORS = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError")
_INVALID_REQUEST_ERRORS = ("ParamValidationError", "BaseEndpointResolverError", "ValidationError")


@dataclass(frozen=True, slots=True)
class _S3Sdk:
    """Modules of the client library, imported on first use."""

    session: ModuleType
    boto_errors: ModuleType
    config: ModuleType
    unsigned: ModuleType
    errors: ModuleType
    http: ModuleType
    handlers: ModuleType
    core_session: ModuleType
    utils: ModuleType

    @classmethod
    def load(cls) -> "_S3Sdk":
        names = ("boto3.session", "boto3.exceptions", "botocore.config", "botocore", "botocore.exceptions")
        more = ("urllib3.exceptions", "botocore.handlers", "botocore.session", "botocore.utils")
        return cls(*(import_package(name, extra="s3", needed_for="a table at s3://") for name in (*names, *more)))

    def new_session(self, settings: Settings) -> Any:
        """Return a session with a fast parser for the times in responses. The parser of botocore, which guesses the
        format, takes more than half of the time of a listing."""

        core = self.core_session.get_session()
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=self.parse_time)
        return self.session.Session(
            aws_access_key_id=settings.get("key_id"),
            aws_secret_access_key=settings.get("key"),
            aws_session_token=settings.get("token"),
            region_name=settings.get("region"),
            botocore_session=core,
        )

    def parse_time(self, value: Any) -> datetime:
        """Return the time of a response."""
        try:
            time = parsedate_to_datetime(value) if value.endswith("GMT") else datetime.fromisoformat(value)
        except (AttributeError, TypeError, ValueError):
            return self.utils.parse_timestamp(value)  # type: ignore[no-any-return]
        return time if time.tzinfo else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class S3Bucket(DeletesBatches):
    """Bucket of Amazon S3 or of a compatible service."""

    batch_max: ClassVar[int] = 1000

    name: str
    settings: Settings
    _sdk: _S3Sdk = field(repr=False)
    _client: "BaseClient" = field(repr=False)
    _object_arguments: dict[str, str] = field(repr=False)
    """Arguments of every request about an object."""
    _put_arguments: dict[str, object] = field(repr=False)
    """Further arguments of requests that write an object."""
    dates: AnswerDates = field(default_factory=AnswerDates, repr=False)
    _batches_refused: Event = field(default_factory=Event, repr=False)
    """Set when the service has refused to delete a batch, as some compatible services do."""

    @classmethod
    def open(cls, authority: str, settings: Settings) -> "S3Bucket":
        sdk = _S3Sdk.load()
        endpoint = settings.get_endpoint()
        try:
            session = sdk.new_session(settings)
            client = session.client(
                "s3",
                region_name=session.region_name or _REGION,
                endpoint_url=endpoint,
                verify=False if settings.get_flag("allow_invalid_certificates") else None,
                config=sdk.config.Config(**_config(settings, endpoint, sdk)),
            )
        except (sdk.errors.BotoCoreError, ValueError) as error:
            raise RequestError(_kind_of_error(error), settings.without_secrets(str(error))) from None
        # `Expect: 100-continue` costs a round trip for each put, and our objects are small.
        client.meta.events.unregister("before-call.s3", sdk.handlers.add_expect_header)
        client.meta.events.register(
            "before-parse.s3.ListObjectsV2",
            lambda response_dict, customized_response_dict, **_more: read_objects(
                sdk.parse_time, response_dict, customized_response_dict
            ),
        )
        dates = AnswerDates()
        client.meta.events.register(
            "after-call.s3", lambda http_response, **_more: dates.record_header(http_response.headers.get("Date"))
        )
        payer = {"RequestPayer": "requester"} if settings.get_flag("requester_pays") else {}
        return cls(
            authority, settings, sdk, client, {"Bucket": authority, **payer}, payer | _encryption(settings), dates
        )

    def get(self, key: str, start: int, length: int | None) -> bytes:
        end = "" if length is None else str(start + length - 1)
        arguments = {"Range": f"bytes={start}-{end}"} if start or length is not None else {}

        def get() -> bytes:
            answer = self._client.get_object(Key=key, **self._object_arguments, **arguments)
            with answer["Body"] as body:
                data: bytes = body.read()
            expected = _answer_length(answer, start, length)
            if len(data) != expected:
                raise RequestError(RequestErrorKind.LOST, f"received {len(data)} of {expected} bytes")
            return data

        try:
            return self._run(get)
        except RequestError as error:
            if error.detail == _OUT_OF_RANGE:
                return b""
            raise

    def head(self, key: str) -> ListedKey:
        answer = self._run(lambda: self._client.head_object(Key=key, **self._object_arguments))
        return ListedKey(key, answer["ContentLength"], answer["LastModified"], answer.get("ETag", ""))

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        arguments: dict[str, object] = {"Prefix": prefix, "MaxKeys": limit}
        if not recursive:
            arguments["Delimiter"] = "/"
        if continuation is not None:
            arguments["ContinuationToken"] = continuation
        elif after:
            arguments["StartAfter"] = after
        answer = self._run(lambda: self._client.list_objects_v2(**self._object_arguments, **arguments))
        keys = [
            ListedKey(item["Key"], item["Size"], item["LastModified"], item.get("ETag", ""))
            for item in answer.get("Contents", ())
        ]
        directories = [common["Prefix"] for common in answer.get("CommonPrefixes", ())]
        return ListingPage(keys, answer["NextContinuationToken"] if answer.get("IsTruncated") else None, directories)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, {})

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, {"IfNoneMatch": "*"})

    def delete(self, key: str) -> None:
        self._run(lambda: self._client.delete_object(Key=key, **self._object_arguments))

    @property
    def deletes_batches(self) -> bool:
        return not (self._batches_refused.is_set() or self.settings.get_flag("single_deletes"))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[str]:
        deletion = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._run(lambda: self._client.delete_objects(Delete=deletion, **self._object_arguments))
        except RequestError as error:
            if error.kind is RequestErrorKind.REFUSED and error.detail != "NoSuchBucket":
                self._batches_refused.set()
            raise
        return [failed["Key"] for failed in answer.get("Errors", ()) if failed.get("Code") != "NoSuchKey"]

    def download(self, key: str, to: Path) -> None:
        self._run(lambda: self._client.download_file(self.name, key, str(to)))

    def begin_upload(self, key: str) -> str:
        arguments = {"Bucket": self.name, "Key": key, **self._put_arguments}
        return str(self._run(lambda: self._client.create_multipart_upload(**arguments))["UploadId"])

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        arguments = {"Key": key, "UploadId": upload_id, "PartNumber": number, "Body": data}
        answer = self._run(lambda: self._client.upload_part(**self._object_arguments, **arguments))
        checksums = {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
        return json.dumps({"PartNumber": number, "ETag": answer["ETag"], **checksums})

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        parts = {"Parts": [json.loads(receipt) for receipt in receipts]}
        arguments = {"Key": key, "UploadId": upload_id, "MultipartUpload": parts}
        self._run(lambda: self._client.complete_multipart_upload(**self._object_arguments, **arguments))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._run(lambda: self._client.abort_multipart_upload(Key=key, UploadId=upload_id, **self._object_arguments))

    def copy(self, key: str, to: str) -> None:
        source = {"Bucket": self.name, "Key": key}
        self._run(lambda: self._client.copy(source, self.name, to, ExtraArgs=self._put_arguments))

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> None:
        arguments = {"Bucket": self.name, "Key": key, "Body": data, **self._put_arguments, **condition}
        self._run(lambda: self._client.put_object(**arguments))

    def _run(self, request: Callable[[], _T]) -> _T:
        """Run a request, and translate the errors of the client library into a `RequestError`."""
        errors = self._sdk.errors
        try:
            return request()
        except errors.ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise _request_error(status, code) from None
        except (errors.BotoCoreError, ValueError) as error:
            raise RequestError(_kind_of_error(error), self.settings.without_secrets(str(error))) from None
        except (OSError, self._sdk.boto_errors.Boto3Error, self._sdk.http.HTTPError) as error:
            # The HTTP library itself raises the error if the body of an answer breaks off.
            raise RequestError(RequestErrorKind.LOST, self.settings.without_secrets(str(error))) from None


def _answer_length(answer: Mapping[str, Any], start: int, length: int | None) -> int:
    """Return the number of bytes that the body must have. For a range, it follows from the size of the object."""
    _, _, size = str(answer.get("ContentRange", "")).partition("/")
    if not size.isdecimal():
        return int(answer["ContentLength"])
    return max(0, int(size) - start) if length is None else min(length, max(0, int(size) - start))


def _config(settings: Settings, endpoint: str | None, sdk: _S3Sdk) -> dict[str, object]:
    config: dict[str, object] = {
        "connect_timeout": settings.get_seconds("connect_timeout", _CONNECT_SECONDS),
        "read_timeout": settings.get_seconds("timeout", _ANSWER_SECONDS),
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": settings.get_int("requests_max", REQUESTS_MAX),
    }
    if settings.get_flag("virtual_hosted"):
        config["s3"] = {"addressing_style": "virtual"}
    elif endpoint:
        config["s3"] = {"addressing_style": "path"}
    if endpoint:  # compatible services may not support the newer checksums of Amazon
        config["request_checksum_calculation"] = "when_required"
        config["response_checksum_validation"] = "when_required"
    if settings.get_flag("unsigned"):
        config["signature_version"] = sdk.unsigned.UNSIGNED
    return config


def _encryption(settings: Settings) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if encryption := settings.get("encryption"):
        arguments["ServerSideEncryption"] = encryption
    if kms_key := settings.get("kms_key"):
        arguments["SSEKMSKeyId"] = kms_key
    if settings.get_flag("bucket_key"):
        arguments["BucketKeyEnabled"] = True
    return arguments


def _request_error(status: int, code: str) -> RequestError:
    if code in ("NoSuchBucket", _OUT_OF_RANGE):
        return RequestError(RequestErrorKind.REFUSED, code)
    if code == "ExpiredToken":
        return RequestError(RequestErrorKind.FORBIDDEN, code)
    if code in _BUSY_CODES:
        return RequestError(RequestErrorKind.BUSY, code)
    return RequestError(kind_of_status(status) if status >= 300 else RequestErrorKind.LOST, code)


def _kind_of_error(error: Exception) -> RequestErrorKind:
    names = {base.__name__ for base in type(error).__mro__}
    if names.intersection(_CREDENTIAL_ERRORS):
        return RequestErrorKind.FORBIDDEN
    if names.intersection(_CONNECTION_ERRORS):
        return RequestErrorKind.UNREACHED
    if names.intersection(_INVALID_REQUEST_ERRORS) or type(error) is ValueError:
        return RequestErrorKind.REFUSED
    return RequestErrorKind.LOST
