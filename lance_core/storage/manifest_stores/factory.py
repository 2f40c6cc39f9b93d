"""From what a caller gives as `manifest_store=`, or wrote into the URI, to a manifest store."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from lance_core.errors import InvalidInput
from lance_core.storage.factory import without_secrets
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.manifest_stores.sql import SqlManifestStore
from lance_core.storage.secret_references import resolve_secrets

_IN_THE_URI = "s3+ddb://"
_QUERY = "ddbTableName"
_FORMS = "sqlite:////data/manifests.db, postgresql://user:password@host/database or dynamodb://table"


def open_manifest_store(
    given: "ManifestStore | str | None", storage_options: Mapping[str, str] | None
) -> ManifestStore | None:
    if not isinstance(given, str):
        if given is not None and not isinstance(given, ManifestStore):
            raise InvalidInput(f"manifest_store= is a URL such as {_FORMS}, and not a {type(given).__name__}")
        return given
    given = resolve_secrets(given, "the manifest store")
    scheme, separator, rest = given.partition("://")
    if not separator:
        # Not repeated: half a URL may hold a password.
        raise InvalidInput(f"the manifest store is no URL; write it as {_FORMS}, or env:NAME for a variable with it")
    if scheme == "dynamodb":
        if not rest or any(each in rest for each in "/?#@"):
            raise InvalidInput(
                "dynamodb://table names a table and nothing else; how it is reached is told by storage options "
                "(aws_region, dynamodb_endpoint and credentials)"
            )
        return DynamoDBManifestStore(rest, dict(storage_options or {}))
    store = SqlManifestStore(given)
    store.description  # noqa: B018 - refuses what cannot be a database, before anything is done
    return store


def split_uri(uri: str) -> tuple[str, str | None]:
    """The URI of the table by itself, and the manifest store that was named in it.

    >>> split_uri("s3+ddb://lake/orders?ddbTableName=commits")
    ('s3://lake/orders', 'dynamodb://commits')
    """
    if not uri.lower().startswith(_IN_THE_URI):
        return uri, None
    place, _, query = uri[len(_IN_THE_URI) :].partition("?")
    asked = parse_qsl(query)
    if len(asked) != 1 or asked[0][0] != _QUERY or not asked[0][1]:
        raise InvalidInput(
            f"{without_secrets(uri)} names its table of DynamoDB with ?{_QUERY}=..., and with nothing else"
        )
    return f"s3://{place}", f"dynamodb://{asked[0][1]}"
