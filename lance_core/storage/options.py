"""`storage_options`: how an object store is reached, in the spelling that Lance gives them, understood once.

The same options go to the codec of the data files, as they were given, and to our own clients, as a `Settings` of
plain names. An option that nobody knows is refused by its name; one that belongs to another store is left alone, since
the places that a table reads from may be of several kinds. Values are never shown, neither here nor in an error.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from lance_core.errors import InvalidInput, Unsupported

# What each option is called here, and how it may be spelt. The first spelling is the one in messages.
_COMMON = {
    "allow_http": ("allow_http", "aws_allow_http", "azure_storage_allow_http"),
    "allow_invalid_certificates": ("allow_invalid_certificates",),
    "connect_timeout": ("connect_timeout",),
    "timeout": ("timeout", "request_timeout"),
    "repeats": ("client_max_retries", "object_store_client_max_retries"),
    "patience": ("client_retry_timeout", "object_store_client_retry_timeout"),
}
_S3 = {
    "key_id": ("aws_access_key_id", "access_key_id"),
    "key": ("aws_secret_access_key", "secret_access_key"),
    "token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint": ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url", "aws_endpoint_url_s3"),
    "virtual_hosted": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    "unsigned": ("aws_skip_signature", "skip_signature"),
    "encryption": ("aws_server_side_encryption", "server_side_encryption"),
    "kms_key": ("aws_sse_kms_key_id", "sse_kms_key_id"),
    "bucket_key": ("aws_sse_bucket_key_enabled", "sse_bucket_key_enabled"),
    "requester_pays": ("aws_request_payer", "request_payer"),
}
_GCS = {
    "key_file": (
        "google_service_account",
        "service_account",
        "google_service_account_path",
        "service_account_path",
        "google_application_credentials",
        "application_credentials",
    ),
    "key": ("google_service_account_key", "service_account_key"),
    "token": ("google_storage_token", "google_bearer_token"),
    "endpoint": ("google_base_url",),
    "unsigned": ("google_skip_signature", "skip_signature"),
}
_AZURE = {
    "account": ("azure_storage_account_name", "account_name"),
    "key": (
        "azure_storage_account_key",
        "account_key",
        "azure_storage_access_key",
        "access_key",
        "azure_storage_master_key",
        "master_key",
    ),
    "sas": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "token": ("azure_storage_token", "bearer_token", "token"),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": (
        "azure_storage_tenant_id",
        "azure_tenant_id",
        "tenant_id",
        "azure_storage_authority_id",
        "azure_authority_id",
        "authority_id",
    ),
    "emulator": ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator"),
    "endpoint": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    "unsigned": ("azure_skip_signature", "skip_signature"),
}
_OF_SCHEME = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfss": _AZURE}
_ONLY_FOR_FILES = frozenset(
    (
        "download_retry_count",
        "default_content_type",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "randomize_addresses",
        "user_agent",
        "aws_unsigned_payload",
        "aws_checksum_algorithm",
        "aws_copy_if_not_exists",
        "aws_disable_tagging",
        "aws_disable_bulk_delete",
        "azure_disable_tagging",
        "dynamodb_endpoint",
        "expires_at_millis",
        "refresh_offset_millis",
    )
)
"""Known to the codec; without them our own requests do the same."""
_NOT_DONE = {
    "proxy_url": "set HTTPS_PROXY in the environment",
    "proxy_ca_certificate": "set HTTPS_PROXY in the environment",
    "proxy_excludes": "set NO_PROXY in the environment",
    "disable_system_certificates": "name a certificate bundle in the environment",
    "aws_s3_express": "listings of directory buckets are not in order; use a general purpose bucket",
    "s3_express": "listings of directory buckets are not in order; use a general purpose bucket",
    "aws_conditional_put": "commits need conditional puts, and always use them",
    "aws_sse_customer_key_base64": "use encryption with keys that the store keeps",
    "aws_web_identity_token_file": "set AWS_WEB_IDENTITY_TOKEN_FILE in the environment",
    "aws_role_arn": "set AWS_ROLE_ARN in the environment",
    "aws_role_session_name": "set AWS_ROLE_SESSION_NAME in the environment",
    "aws_imdsv1_fallback": "credentials of the machine are taken by the second version of its service",
    "aws_metadata_endpoint": "set AWS_EC2_METADATA_SERVICE_ENDPOINT in the environment",
    "aws_container_credentials_relative_uri": "set AWS_CONTAINER_CREDENTIALS_RELATIVE_URI in the environment",
    "aws_container_credentials_full_uri": "set AWS_CONTAINER_CREDENTIALS_FULL_URI in the environment",
    "azure_federated_token_file": "set AZURE_FEDERATED_TOKEN_FILE in the environment",
    "azure_use_azure_cli": "it is asked by itself where no other credential is given",
    "azure_msi_endpoint": "the machine's identity is asked by itself where no other credential is given",
    "azure_use_fabric_endpoint": "give azure_storage_endpoint",
    "azure_storage_encryption_key": "use encryption with keys that the store keeps",
}
_FLAGS = (
    "allow_http",
    "allow_invalid_certificates",
    "virtual_hosted",
    "unsigned",
    "bucket_key",
    "requester_pays",
    "emulator",
)
_SECRET = frozenset(("key_id", "key", "token", "sas", "client_secret"))
"""An id of a key is none by itself, and shown to nobody all the same."""
PROVIDER = "provider"
"""Names who is asked for options; see `secret_references.py`."""
_SECRET_CHARACTERS_MIN = 4
_ENVIRONMENT_PREFIXES = ("aws_", "google_", "azure_", "object_store_")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one store, by the names that our clients know."""

    scheme: str
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def get(self, name: str) -> str | None:
        return dict(self.values).get(name)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is None or value.lower() in ("false", "0", "no", "off", "f", "n", ""):
            return False
        if value.lower() in ("true", "1", "yes", "on", "t", "y"):
            return True
        raise InvalidInput(f"the storage option {_spelling(self.scheme, name)} is neither true nor false")

    def seconds(self, name: str, otherwise: float) -> float:
        """A number, with or without its unit.

        >>> Settings("s3", (("timeout", "1500ms"),)).seconds("timeout", 30)
        1.5
        """
        value = self.get(name)
        if value is None:
            return otherwise
        number = value.strip().lower()
        for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
            if number.endswith(unit) and number.removesuffix(unit).replace(".", "", 1).isdecimal():
                return float(number.removesuffix(unit)) * factor
        raise InvalidInput(f"the storage option {_spelling(self.scheme, name)} is not a time such as '30s'")

    def number(self, name: str, otherwise: int) -> int:
        value = self.get(name)
        if value is None:
            return otherwise
        if not value.isdecimal():
            raise InvalidInput(f"the storage option {_spelling(self.scheme, name)} is not a number")
        return int(value)

    def endpoint(self) -> str | None:
        """Without TLS only if the caller said so, whose credentials would be on the wire."""
        endpoint = self.get("endpoint")
        if endpoint is None:
            return None
        if not endpoint.startswith(("http://", "https://")) or "@" in endpoint or "?" in endpoint:
            raise InvalidInput(
                f"the storage option {_spelling(self.scheme, 'endpoint')} is an address that begins with https:// "
                "(or http://), without user, password and query"
            )
        if endpoint.startswith("http://") and not self.flag("allow_http"):
            raise InvalidInput(
                f"the storage option {_spelling(self.scheme, 'endpoint')} has an address without TLS; if that is "
                "what you want, add allow_http='true'"
            )
        return endpoint.rstrip("/")

    def check(self) -> None:
        """What cannot be is refused by its name, before anybody else is told its value."""
        self.endpoint()
        self.number("repeats", 0)
        for name in ("connect_timeout", "timeout", "patience"):
            self.seconds(name, 0)
        for name in _FLAGS:
            self.flag(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """And what of them is seen alone: a SAS is part of addresses, and what it is worth is its signature."""
        found = [value for name, value in self.values if name in _SECRET]
        signed = (self.get("sas") or "").removeprefix("?")
        found += [signed, *(value for name, value in parse_qsl(signed) if name == "sig")]
        found += [part.partition("=")[2] for part in signed.split("&") if part.startswith("sig=")]
        return tuple(dict.fromkeys(each for each in found if each))

    def without_secrets(self, text: str) -> str:
        """A text that somebody else wrote, fit for a message."""
        return hidden(text, self.secrets)


def is_secret(option: str) -> bool:
    """Whether the value of this option opens something, in whichever store."""
    return any(option.lower() in names[each] for names in _OF_SCHEME.values() for each in _SECRET & names.keys())


def hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "***")
    return text


def settings(scheme: str, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Settings:
    """What is given counts more than the environment."""
    check_names(given)
    lowered = {name.lower(): value for name, value in given.items()}
    around = {name.lower(): value for name, value in environment.items() if _is_ours(name.lower())}
    found: list[tuple[str, str]] = []
    for name, spellings in (*_COMMON.items(), *_OF_SCHEME[scheme].items()):
        for source in (lowered, around):
            value = next((source[spelling] for spelling in spellings if source.get(spelling)), None)
            if value is not None:
                found.append((name, value))
                break
    return Settings(scheme, tuple(found))


def bound(given: Mapping[str, str], *, own: str, other: str) -> dict[str, str]:
    """Of the options that were given for the table at `own`, those that another place is told.

    What belongs to one store alone goes there alone. A name that several stores share, such as `token`, is the table's,
    and so is a provider; what opens one account of Azure is shown to no other.

    >>> bound({"token": "x", "aws_region": "y"}, own="az://lake/t", other="s3://lake/t")
    {'aws_region': 'y'}
    """
    families = [_OF_SCHEME.get(uri.partition("://")[0].partition("+")[0].lower()) for uri in (own, other)]
    ours, theirs = families
    if ours is None or theirs is None:
        return dict(given)
    if ours is theirs:
        withheld = _SECRET if ours is _AZURE and _account(own, given) != _account(other, given) else frozenset()
        hidden_names = {spelling for name in withheld for spelling in ours.get(name, ())}
        hidden_names |= {PROVIDER} if withheld else set()
        return {name: value for name, value in given.items() if name.lower() not in hidden_names}
    strangers = {
        spelling
        for family in (_S3, _GCS, _AZURE)
        if family is not theirs
        for spellings in family.values()
        for spelling in spellings
    } | {PROVIDER}
    return {name: value for name, value in given.items() if name.lower() not in strangers}


def _account(uri: str, given: Mapping[str, str]) -> str | None:
    """Of Azure, as the URI or an option names it."""
    _container, at, host = uri.partition("://")[2].partition("/")[0].partition("@")
    if at:
        return host.partition(".")[0]
    lowered = {name.lower(): value for name, value in given.items()}
    return next((lowered[spelling] for spelling in _AZURE["account"] if spelling in lowered), None)


def check_names(given: Mapping[str, str]) -> None:
    known = {spelling for names in (_COMMON, *_OF_SCHEME.values()) for each in names.values() for spelling in each}
    known |= _ONLY_FOR_FILES
    for name, value in given.items():
        if not all(isinstance(each, str) for each in (name, value)):
            raise InvalidInput(f"storage_options is a mapping of texts to texts; {name!r} is not, or has no text")
        if advice := _NOT_DONE.get(name.lower()):
            raise Unsupported(f"the storage option {name} is not supported: {advice}")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            raise InvalidInput(
                f"no store has the option {name!r}; " + (f"did you mean {near[0]!r}?" if near else "leave it out")
            )


def _is_ours(name: str) -> bool:
    return name.startswith(_ENVIRONMENT_PREFIXES)


def _spelling(scheme: str, name: str) -> str:
    return {**_COMMON, **_OF_SCHEME[scheme]}[name][0]
