"""DynamoDB manifest store: entries in a DynamoDB table, with the keys and attributes that Lance uses.

So both can write the tables at `s3+ddb://bucket/path?ddbTableName=...`.

    base_uri   S  hash key    path of the table without its bucket
    version    N  range key
    path       S              path of the manifest from the root of the bucket
    size       N              size of the manifest
    committer  S              name of the library; the `e_tag` of older writers is neither read nor kept

botocore is imported when the first table is used. A request that botocore retries may meet its own first attempt. The
writer then reads the entry, which names its own unique file.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, Protocol, TypedDict, cast

from lance_core.errors import InvalidInput, LanceError, MissingDependency, NotFound, StorageError, Unsupported
from lance_core.format.ids import Version
from lance_core.storage.log_redaction import redact_in_logs
from lance_core.storage.manifest_stores.manifest_store import COMMITTER, Entry
from lance_core.storage.secret_references import resolve_options
from lance_core.storage.store import Put

KIND = "dynamodb"
_OPTIONS = {
    "aws_access_key_id": ("aws_access_key_id", "access_key_id"),
    "aws_secret_access_key": ("aws_secret_access_key", "secret_access_key"),
    "aws_session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region_name": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint_url": ("dynamodb_endpoint",),
}
"""Client arguments of botocore, and the storage options that set them. Other options apply to the bucket only."""
_ENVIRONMENT_VARIABLES = {"region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint_url": ("DYNAMODB_ENDPOINT",)}
"""Environment variables for the same arguments. botocore reads credentials itself, so that they are from one source."""
_TRUE_VALUES = ("true", "1", "yes", "on", "t", "y")
_FIRST_DETACHED_VERSION = 1 << 63
"""Lance also creates entries for detached versions, whose numbers start here, and then reads one as the newest version.
This class ignores them.
"""
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 20
ATTEMPTS_MAX = 5
_Attribute = Mapping[str, str]
_Item = Mapping[str, _Attribute]


class _QueryPage(TypedDict):
    Items: list[_Item]
    LastEvaluatedKey: NotRequired[_Item]


class _Client(Protocol):
    """Methods of a botocore client that this module calls."""

    def describe_table(self, *, TableName: str) -> Mapping[str, Mapping[str, object]]: ...
    def get_item(self, **request: object) -> Mapping[str, _Item]: ...
    def query(self, **request: object) -> _QueryPage: ...
    def put_item(self, **request: object) -> object: ...
    def delete_item(self, **request: object) -> object: ...


_clients: dict[tuple[object, ...], _Client] = {}
"""Clients by process, table and arguments. Creating one takes 0.1 s, and a client must not be used across a fork."""
_clients_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class DynamoDBManifestStore:
    """DynamoDB table `table` as a manifest store."""

    table: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def description(self) -> str:
        return f"DynamoDB table {self.table}"

    @property
    def kind(self) -> str:
        return KIND

    def qualify_uri(self, uri: str) -> str:
        """Return the `s3+ddb://` URI, as Lance writes it."""
        scheme, _, location = uri.partition("://")
        return f"s3+ddb://{location}?ddbTableName={self.table}" if scheme == "s3" else uri

    def table_key(self, uri: str) -> str:
        """Return the path of an S3 URI without the bucket, as Lance does, or any other URI unchanged.

        Tables with the same path in two buckets therefore need two DynamoDB tables.
        """
        scheme, separator, rest = uri.partition("://")
        return rest.partition("/")[2].strip("/") if separator and scheme.startswith("s3") else uri

    def newest_entry(self, key: str) -> Entry | None:
        items = self._query(key, "read the newest version", ScanIndexForward=False, Limit=1)["Items"]
        return self._entry(key, items[0]) if items else None

    def find_entry(self, key: str, version: Version) -> Entry | None:
        client = self._client()
        try:
            answer = client.get_item(TableName=self.table, Key=_primary_key(key, version), ConsistentRead=True)
        except _botocore_errors() as error:
            raise self._error(f"read version {version}", key, error) from None
        return self._entry(key, answer["Item"]) if "Item" in answer else None

    def list_entries(self, key: str) -> Sequence[Entry]:
        page = self._query(key, "list the versions")
        items = list(page["Items"])
        while last_key := page.get("LastEvaluatedKey"):
            page = self._query(key, "list the versions", ExclusiveStartKey=last_key)
            items += page["Items"]
        return [self._entry(key, item) for item in items]

    def reserve(self, key: str, entry: Entry) -> Put:
        client = self._client()
        try:
            client.put_item(
                TableName=self.table,
                Item=self._item(key, entry),
                ConditionExpression="attribute_not_exists(base_uri) AND attribute_not_exists(version)",
            )
        except _botocore_errors() as error:
            if _error_code(error) == "ConditionalCheckFailedException":
                return Put.EXISTS
            if _is_outcome_unknown(error):
                return Put.UNKNOWN
            raise self._error(f"reserve version {entry.version}", key, error) from None
        return Put.CREATED

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        client = self._client()
        try:
            client.put_item(
                TableName=self.table, Item=self._item(key, to), **_path_condition(self._stored_path(key, entry.path))
            )
        except _botocore_errors() as error:
            if _error_code(error) != "ConditionalCheckFailedException":
                raise self._error(f"move the entry of version {entry.version}", key, error) from None
            return self.find_entry(key, entry.version) == to
        return True

    def remove_entry(self, key: str, entry: Entry) -> None:
        client = self._client()
        try:
            client.delete_item(
                TableName=self.table,
                Key=_primary_key(key, entry.version),
                **_path_condition(self._stored_path(key, entry.path)),
            )
        except _botocore_errors() as error:
            if _error_code(error) != "ConditionalCheckFailedException":
                raise self._error(f"delete the entry of version {entry.version}", key, error) from None

    def _query(self, key: str, action: str, **arguments: object) -> _QueryPage:
        """Return one page of the entries of a table, sorted by version. `action` describes the request in messages."""
        client = self._client()
        try:
            return client.query(
                TableName=self.table,
                KeyConditionExpression="base_uri = :key AND version < :detached",
                ExpressionAttributeValues={":key": {"S": key}, ":detached": {"N": str(_FIRST_DETACHED_VERSION)}},
                ConsistentRead=True,
                **arguments,
            )
        except _botocore_errors() as error:
            raise self._error(action, key, error) from error

    def _item(self, key: str, entry: Entry) -> _Item:
        item = {
            **_primary_key(key, entry.version),
            "path": {"S": self._stored_path(key, entry.path)},
            "committer": {"S": COMMITTER},
        }
        return item if entry.size is None else {**item, "size": {"N": str(entry.size)}}

    def _stored_path(self, key: str, path: str) -> str:
        return f"{key}/{path}" if key else path

    def _entry(self, key: str, item: _Item) -> Entry:
        try:
            version, path = Version(int(item["version"]["N"])), item["path"]["S"]
            size = int(item["size"]["N"]) if "size" in item else None
        except (KeyError, ValueError) as error:
            raise StorageError(
                f"{self.description}: an entry of {key!r} does not have the attributes of a Lance entry (a string "
                "`path` and numbers `version` and `size`); correct it, or delete it if its version has a manifest"
            ) from error
        # A path without this prefix stays unchanged, and `check_entry` rejects it.
        return Entry(version, path.removeprefix(f"{key}/") if key else path, size)

    def _client(self) -> _Client:
        arguments = tuple(sorted(self._client_arguments().items()))
        with _clients_lock:
            cache_key = (os.getpid(), self.table, arguments)
            if cache_key not in _clients:
                client = self._create_client()
                self._check_key_schema(client)
                _clients[cache_key] = client
            return _clients[cache_key]

    def _client_arguments(self) -> dict[str, str]:
        options = resolve_options(self.storage_options, f"{KIND}://{self.table}")
        lowered = {name.lower(): value for name, value in options.items()}
        arguments = {
            name: value
            for name, spellings in _OPTIONS.items()
            if (value := next((lowered[spelling] for spelling in spellings if lowered.get(spelling)), None))
        }
        for name, variables in _ENVIRONMENT_VARIABLES.items():
            if value := next((os.environ[variable] for variable in variables if os.environ.get(variable)), None):
                arguments.setdefault(name, value)
        endpoint = arguments.get("endpoint_url", "https://")
        if not endpoint.startswith(("http://", "https://")) or "@" in endpoint or "?" in endpoint:
            raise InvalidInput(
                "dynamodb_endpoint must be an address that begins with https:// (or http://), without user, password "
                "and query"
            )
        redact_in_logs(value for name, value in arguments.items() if name.startswith("aws_"))
        if endpoint.startswith("http://") and lowered.get("allow_http", "").lower() not in _TRUE_VALUES:
            raise InvalidInput(
                "dynamodb_endpoint is an address without TLS; to allow that, add allow_http='true' to the storage "
                "options"
            )
        return arguments

    def _create_client(self) -> _Client:
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import get_session
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "a manifest store in DynamoDB needs botocore; install it with: pip install 'lance-assets[dynamodb]'"
            ) from error
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_ANSWER_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        )
        try:
            return cast(_Client, get_session().create_client("dynamodb", config=config, **self._client_arguments()))
        except (BotoCoreError, ValueError) as error:
            raise InvalidInput(
                f"{self.description}: the access options are invalid ({type(error).__name__}); set aws_region and, "
                "unless it is Amazon's own service, dynamodb_endpoint as storage options"
            ) from None

    def _check_key_schema(self, client: _Client) -> None:
        try:
            described = client.describe_table(TableName=self.table)["Table"]["KeySchema"]
        except _botocore_errors() as error:
            raise self._error("describe the table", "", error) from None
        keys = {part["AttributeName"]: part["KeyType"] for part in cast(list[Mapping[str, str]], described)}
        if keys != {"base_uri": "HASH", "version": "RANGE"}:
            raise Unsupported(
                f"{self.description} has the keys {sorted(keys)}, but Lance needs a hash key base_uri (S) and a range "
                "key version (N); create another table"
            )

    def _error(self, action: str, key: str, error: Exception) -> LanceError:
        """Return the error to raise. Its message omits that of botocore, which may quote the request."""
        code = _error_code(error) or type(error).__name__
        failure = f"{self.description}: could not {action}" + (f" of {key!r}" if key else "")
        if code == "ResourceNotFoundException":
            return NotFound(
                f"{self.description} does not exist; create it with a hash key base_uri (S) and a range key version "
                "(N), or name another"
            )
        return StorageError(f"{failure}: {code}; check the credentials, the region and the network, then try again")


def _primary_key(key: str, version: Version) -> _Item:
    return {"base_uri": {"S": key}, "version": {"N": str(version)}}


def _path_condition(path: str) -> Mapping[str, object]:
    return {
        "ConditionExpression": "#path = :path",
        "ExpressionAttributeNames": {"#path": "path"},
        "ExpressionAttributeValues": {":path": {"S": path}},
    }


def _botocore_errors() -> tuple[type[Exception], ...]:
    """Return the base classes of the errors that botocore raises."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def _error_code(error: Exception) -> str:
    """Return the error code of DynamoDB's answer; empty if there was no answer."""
    from botocore.exceptions import ClientError

    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _is_outcome_unknown(error: Exception) -> bool:
    """Return whether the request may have taken effect: unless its first attempt was rejected, or it was not sent."""
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, PartialCredentialsError

    if isinstance(error, ClientError):
        metadata = error.response.get("ResponseMetadata", {})
        return metadata.get("HTTPStatusCode", 500) >= 500 or bool(metadata.get("RetryAttempts", 0))
    return not isinstance(error, NoCredentialsError | ParamValidationError | PartialCredentialsError)


def _reset_lock_after_fork() -> None:
    """Replace the lock: if another thread held it during the fork, it would stay locked in the child."""
    global _clients_lock
    _clients_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)
