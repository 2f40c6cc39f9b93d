"""Manifest store factory: opens the manifest store that `manifest_store=` or the URI of a table names."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from lance_core.errors import InvalidInput
from lance_core.storage.factory import without_secrets
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.manifest_stores.sql import SqlManifestStore
from lance_core.storage.secret_references import resolve_secrets

_DYNAMODB_PREFIX = "s3+ddb://"
_TABLE_PARAMETER = "ddbTableName"
_URL_EXAMPLES = "sqlite:////data/manifests.db, postgresql://user:password@host/database or dynamodb://table"


def open_manifest_store(
    manifest_store: "ManifestStore | str | None", storage_options: Mapping[str, str] | None
) -> ManifestStore | None:
    """Return the manifest store for the `manifest_store=` argument: a URL, a manifest store, or `None`."""
    if not isinstance(manifest_store, str):
        if manifest_store is not None and not isinstance(manifest_store, ManifestStore):
            raise InvalidInput(
                f"manifest_store must be a URL such as {_URL_EXAMPLES}, not {type(manifest_store).__name__}"
            )
        return manifest_store
    url = resolve_secrets(manifest_store, "the manifest store")
    scheme, separator, rest = url.partition("://")
    if not separator:
        # The message does not repeat the value, because an incomplete URL may contain a password.
        raise InvalidInput(
            f"manifest_store is not a URL; write it as {_URL_EXAMPLES}, or as env:NAME to read it from an environment "
            "variable"
        )
    if scheme == "dynamodb":
        if not rest or any(char in rest for char in "/?#@"):
            raise InvalidInput(
                "dynamodb://table must name a table and nothing else; pass access options as storage options "
                "(aws_region, dynamodb_endpoint and credentials)"
            )
        return DynamoDBManifestStore(rest, dict(storage_options or {}))
    store = SqlManifestStore(url)
    store.description  # noqa: B018 - raises for an invalid URL before anything is written
    return store


def split_uri(uri: str) -> tuple[str, str | None]:
    """Return the URI of the table, and the URL of the manifest store that the given URI names, if any.

    >>> split_uri("s3+ddb://lake/orders?ddbTableName=commits")
    ('s3://lake/orders', 'dynamodb://commits')
    """
    if not uri.lower().startswith(_DYNAMODB_PREFIX):
        return uri, None
    location, _, query = uri[len(_DYNAMODB_PREFIX) :].partition("?")
    parameters = parse_qsl(query)
    if len(parameters) != 1 or parameters[0][0] != _TABLE_PARAMETER or not parameters[0][1]:
        raise InvalidInput(
            f"{without_secrets(uri)} must name its DynamoDB table with the query ?{_TABLE_PARAMETER}=... alone"
        )
    return f"s3://{location}", f"dynamodb://{parameters[0][1]}"
