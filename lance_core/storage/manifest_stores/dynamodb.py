"""Entries in a table of DynamoDB, with the keys and attributes that Lance itself gives them, so that both write what is
at `s3+ddb://bucket/path?ddbTableName=...`.

    base_uri  S  hash key     the path of the table without its bucket
    version   N  range key
    path      S               from the bucket's root, as Lance keeps it
    size      N               of the manifest;   committer  S;   an `e_tag` of older writers is not read, nor kept

botocore is loaded when the first table is used. A request that it repeats may meet its own first try; whoever reserves
looks at the entry then, which names a file that is nobody else's.
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
from lance_core.storage.secret_references import resolved
from lance_core.storage.store import Put

KIND = "dynamodb"
_OPTIONS = {
    "aws_access_key_id": ("aws_access_key_id", "access_key_id"),
    "aws_secret_access_key": ("aws_secret_access_key", "secret_access_key"),
    "aws_session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region_name": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint_url": ("dynamodb_endpoint",),
}
"""What botocore calls the storage options that say how DynamoDB is reached; the others are for the store alone."""
_ENVIRONMENT = {"region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint_url": ("DYNAMODB_ENDPOINT",)}
"""Credentials it finds by itself: those of one place, never half of them."""
_TRUE = ("true", "1", "yes", "on", "t", "y")
_DETACHED_FROM = 1 << 63
"""Lance enters versions beside the line too, under numbers from here on, and takes one for the newest. We do not."""
_SECONDS_TO_CONNECT = 5
_SECONDS_TO_ANSWER = 20
_TRIES = 5
_Attribute = Mapping[str, str]
_Item = Mapping[str, _Attribute]


class _QueryPage(TypedDict):
    Items: list[_Item]
    LastEvaluatedKey: NotRequired[_Item]


class _Client(Protocol):
    """What is used of a client of botocore."""

    def describe_table(self, *, TableName: str) -> Mapping[str, Mapping[str, object]]: ...
    def get_item(self, **request: object) -> Mapping[str, _Item]: ...
    def query(self, **request: object) -> _QueryPage: ...
    def put_item(self, **request: object) -> object: ...
    def delete_item(self, **request: object) -> object: ...


_clients: dict[tuple[object, ...], _Client] = {}
"""By process, table and way to it: making one costs a tenth of a second, and one is not taken across a fork."""
_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class DynamoDBManifestStore:
    table: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def description(self) -> str:
        return f"DynamoDB table {self.table}"

    @property
    def kind(self) -> str:
        return KIND

    def named_in(self, uri: str) -> str:
        """As Lance writes it."""
        scheme, _, place = uri.partition("://")
        return f"s3+ddb://{place}?ddbTableName={self.table}" if scheme == "s3" else uri

    def key(self, uri: str) -> str:
        """Of S3 without the bucket, as Lance has it: two buckets with the same paths in them need two tables here."""
        scheme, separator, rest = uri.partition("://")
        return rest.partition("/")[2].strip("/") if separator and scheme.startswith("s3") else uri

    def newest(self, key: str) -> Entry | None:
        items = self._page(key, "look for the newest version", ScanIndexForward=False, Limit=1)["Items"]
        return self._entry(key, items[0]) if items else None

    def find(self, key: str, version: Version) -> Entry | None:
        client = self._client()
        try:
            answer = client.get_item(TableName=self.table, Key=_keys(key, version), ConsistentRead=True)
        except _errors() as error:
            raise self._failed(f"look for version {version}", key, error) from None
        return self._entry(key, answer["Item"]) if "Item" in answer else None

    def listed(self, key: str) -> Sequence[Entry]:
        page = self._page(key, "list the versions")
        found = list(page["Items"])
        while following := page.get("LastEvaluatedKey"):
            page = self._page(key, "list the versions", ExclusiveStartKey=following)
            found += page["Items"]
        return [self._entry(key, item) for item in found]

    def reserve(self, key: str, entry: Entry) -> Put:
        client = self._client()
        try:
            client.put_item(
                TableName=self.table,
                Item=self._item(key, entry),
                ConditionExpression="attribute_not_exists(base_uri) AND attribute_not_exists(version)",
            )
        except _errors() as error:
            if _code(error) == "ConditionalCheckFailedException":
                return Put.EXISTS
            if _may_have_happened(error):
                return Put.UNKNOWN
            raise self._failed(f"reserve version {entry.version}", key, error) from None
        return Put.CREATED

    def move(self, key: str, entry: Entry, to: Entry) -> bool:
        client = self._client()
        try:
            client.put_item(
                TableName=self.table, Item=self._item(key, to), **_only_if_at(self._stored(key, entry.path))
            )
        except _errors() as error:
            if _code(error) != "ConditionalCheckFailedException":
                raise self._failed(f"move version {entry.version}", key, error) from None
            return self.find(key, entry.version) == to
        return True

    def forget(self, key: str, entry: Entry) -> None:
        client = self._client()
        try:
            client.delete_item(
                TableName=self.table, Key=_keys(key, entry.version), **_only_if_at(self._stored(key, entry.path))
            )
        except _errors() as error:
            if _code(error) != "ConditionalCheckFailedException":
                raise self._failed(f"forget version {entry.version}", key, error) from None

    def _page(self, key: str, what: str, **more: object) -> _QueryPage:
        """Of the entries of a table, in the order of versions."""
        client = self._client()
        try:
            return client.query(
                TableName=self.table,
                KeyConditionExpression="base_uri = :key AND version < :detached",
                ExpressionAttributeValues={":key": {"S": key}, ":detached": {"N": str(_DETACHED_FROM)}},
                ConsistentRead=True,
                **more,
            )
        except _errors() as error:
            raise self._failed(what, key, error) from error

    def _item(self, key: str, entry: Entry) -> _Item:
        item = {
            **_keys(key, entry.version),
            "path": {"S": self._stored(key, entry.path)},
            "committer": {"S": COMMITTER},
        }
        return item if entry.size is None else {**item, "size": {"N": str(entry.size)}}

    def _stored(self, key: str, path: str) -> str:
        return f"{key}/{path}" if key else path

    def _entry(self, key: str, item: _Item) -> Entry:
        try:
            version, path = Version(int(item["version"]["N"])), item["path"]["S"]
            size = int(item["size"]["N"]) if "size" in item else None
        except (KeyError, ValueError) as error:
            raise StorageError(
                f"{self.description}: an entry of {key!r} is not one of Lance (a string `path` and numbers `version` "
                "and `size`); correct it, or remove it if its version has a manifest"
            ) from error
        # One that does not begin like this is left as it is, and refused by whoever wanted the file.
        return Entry(version, path.removeprefix(f"{key}/") if key else path, size)

    def _client(self) -> _Client:
        reached = tuple(sorted(self._arguments().items()))
        with _making:
            known = (os.getpid(), self.table, reached)
            if known not in _clients:
                client = self._made()
                self._check(client)
                _clients[known] = client
            return _clients[known]

    def _arguments(self) -> dict[str, str]:
        options = resolved(self.storage_options, f"{KIND}://{self.table}")
        lowered = {name.lower(): value for name, value in options.items()}
        given = {
            name: found
            for name, spellings in _OPTIONS.items()
            if (found := next((lowered[each] for each in spellings if lowered.get(each)), None))
        }
        for name, variables in _ENVIRONMENT.items():
            if found := next((os.environ[each] for each in variables if os.environ.get(each)), None):
                given.setdefault(name, found)
        endpoint = given.get("endpoint_url", "https://")
        if not endpoint.startswith(("http://", "https://")) or "@" in endpoint or "?" in endpoint:
            raise InvalidInput(
                "dynamodb_endpoint is an address that begins with https:// (or http://), without user, password and "
                "query"
            )
        redact_in_logs(found for name, found in given.items() if name.startswith("aws_"))
        if endpoint.startswith("http://") and lowered.get("allow_http", "").lower() not in _TRUE:
            raise InvalidInput(
                "dynamodb_endpoint is an address without TLS; if that is what you want, add allow_http='true' to the "
                "storage options"
            )
        return given

    def _made(self) -> _Client:
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import get_session
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "versions reserved in DynamoDB need botocore: pip install 'lance-assets[dynamodb]'"
            ) from error
        config = Config(
            connect_timeout=_SECONDS_TO_CONNECT,
            read_timeout=_SECONDS_TO_ANSWER,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
        )
        try:
            return cast(_Client, get_session().create_client("dynamodb", config=config, **self._arguments()))
        except (BotoCoreError, ValueError) as error:
            raise InvalidInput(
                f"{self.description} cannot be reached as it is described ({type(error).__name__}): give aws_region "
                "and, where it is not Amazon's own, dynamodb_endpoint as storage options"
            ) from None

    def _check(self, client: _Client) -> None:
        try:
            described = client.describe_table(TableName=self.table)["Table"]["KeySchema"]
        except _errors() as error:
            raise self._failed("describe the table", "", error) from None
        keys = {each["AttributeName"]: each["KeyType"] for each in cast(list[Mapping[str, str]], described)}
        if keys != {"base_uri": "HASH", "version": "RANGE"}:
            raise Unsupported(
                f"{self.description} has other keys than those that Lance looks for: a hash key base_uri (S) and a "
                f"range key version (N), and not {sorted(keys)}; make another table"
            )

    def _failed(self, what: str, key: str, error: Exception) -> LanceError:
        """Without the error itself, which may quote the request."""
        code = _code(error) or type(error).__name__
        place = f"{self.description}: could not {what}" + (f" of {key!r}" if key else "")
        if code == "ResourceNotFoundException":
            return NotFound(
                f"{self.description} does not exist; make it with a hash key base_uri (S) and a range key version (N), "
                "or name another"
            )
        return StorageError(f"{place}: {code}; look at the credentials, the region and the network, then repeat it")


def _keys(key: str, version: Version) -> _Item:
    return {"base_uri": {"S": key}, "version": {"N": str(version)}}


def _only_if_at(path: str) -> Mapping[str, object]:
    return {
        "ConditionExpression": "#path = :path",
        "ExpressionAttributeNames": {"#path": "path"},
        "ExpressionAttributeValues": {":path": {"S": path}},
    }


def _errors() -> tuple[type[Exception], ...]:
    """What botocore raises."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def _code(error: Exception) -> str:
    """Of what DynamoDB answered; nothing where it did not."""
    from botocore.exceptions import ClientError

    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _may_have_happened(error: Exception) -> bool:
    """Unless it was refused at the first try, or never sent."""
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, PartialCredentialsError

    if isinstance(error, ClientError):
        told = error.response.get("ResponseMetadata", {})
        return told.get("HTTPStatusCode", 500) >= 500 or bool(told.get("RetryAttempts", 0))
    return not isinstance(error, NoCredentialsError | ParamValidationError | PartialCredentialsError)


def _begin_anew() -> None:
    """A lock that another thread held at the fork would never be let go."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
