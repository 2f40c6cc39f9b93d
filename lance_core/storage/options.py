"""Storage options: how an object store is reached, in the spelling that Lance uses.

The options go unchanged to the codec of the data files, and as parsed `Settings` with short names to our own clients.
An unknown option is rejected by its name. An option of another store is ignored, because one table may read from
several kinds of store. Values appear in no message. Start at `parse_settings`.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from lance_core.errors import InvalidInput, Unsupported

# Name of each option in `Settings`, and its accepted spellings. Messages use the first spelling.
_COMMON = {
    "allow_http": ("allow_http", "aws_allow_http", "azure_storage_allow_http"),
    "allow_invalid_certificates": ("allow_invalid_certificates",),
    "connect_timeout": ("connect_timeout",),
    "timeout": ("timeout", "request_timeout"),
    "retries": ("client_max_retries", "object_store_client_max_retries"),
    "retry_timeout": ("client_retry_timeout", "object_store_client_retry_timeout"),
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
_OPTIONS_BY_SCHEME = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfss": _AZURE}
_CODEC_ONLY = frozenset(
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
"""Options that only the codec uses. Our own requests work the same without them."""
_UNSUPPORTED = {
    "proxy_url": "set HTTPS_PROXY in the environment",
    "proxy_ca_certificate": "set HTTPS_PROXY in the environment",
    "proxy_excludes": "set NO_PROXY in the environment",
    "disable_system_certificates": "name a certificate bundle in the environment",
    "aws_s3_express": "directory buckets list objects in no order; use a general purpose bucket",
    "s3_express": "directory buckets list objects in no order; use a general purpose bucket",
    "aws_conditional_put": "commits need conditional puts and always use them; remove the option",
    "aws_sse_customer_key_base64": "use encryption with keys that the store manages",
    "aws_web_identity_token_file": "set AWS_WEB_IDENTITY_TOKEN_FILE in the environment",
    "aws_role_arn": "set AWS_ROLE_ARN in the environment",
    "aws_role_session_name": "set AWS_ROLE_SESSION_NAME in the environment",
    "aws_imdsv1_fallback": "credentials of the machine are read with version 2 of the metadata service only",
    "aws_metadata_endpoint": "set AWS_EC2_METADATA_SERVICE_ENDPOINT in the environment",
    "aws_container_credentials_relative_uri": "set AWS_CONTAINER_CREDENTIALS_RELATIVE_URI in the environment",
    "aws_container_credentials_full_uri": "set AWS_CONTAINER_CREDENTIALS_FULL_URI in the environment",
    "azure_federated_token_file": "set AZURE_FEDERATED_TOKEN_FILE in the environment",
    "azure_use_azure_cli": "the Azure CLI is used automatically if no other credential is configured",
    "azure_msi_endpoint": "the managed identity is used automatically if no other credential is configured",
    "azure_use_fabric_endpoint": "set azure_storage_endpoint",
    "azure_storage_encryption_key": "use encryption with keys that the store manages",
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
"""Options whose values are redacted. The id of a key is not a secret by itself, but is treated as one."""
PROVIDER = "provider"
"""Option that names a function which returns further options; see `secret_references.py`."""
_SECRET_CHARACTERS_MIN = 4
_ENVIRONMENT_PREFIXES = ("aws_", "google_", "azure_", "object_store_")


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one store under their short names."""

    scheme: str
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def get(self, name: str) -> str | None:
        return dict(self.values).get(name)

    def get_flag(self, name: str) -> bool:
        """Return the boolean value of an option; false if it is not set."""
        value = self.get(name)
        if value is None or value.lower() in ("false", "0", "no", "off", "f", "n", ""):
            return False
        if value.lower() in ("true", "1", "yes", "on", "t", "y"):
            return True
        raise InvalidInput(f"the storage option {_public_name(self.scheme, name)} must be true or false")

    def get_seconds(self, name: str, default: float) -> float:
        """Return a duration in seconds. The value is a number with an optional unit.

        >>> Settings("s3", (("timeout", "1500ms"),)).get_seconds("timeout", 30)
        1.5
        """
        value = self.get(name)
        if value is None:
            return default
        number = value.strip().lower()
        for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
            if number.endswith(unit) and number.removesuffix(unit).replace(".", "", 1).isdecimal():
                return float(number.removesuffix(unit)) * factor
        raise InvalidInput(f"the storage option {_public_name(self.scheme, name)} must be a duration such as '30s'")

    def get_int(self, name: str, default: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if not value.isdecimal():
            raise InvalidInput(f"the storage option {_public_name(self.scheme, name)} must be a number")
        return int(value)

    def get_endpoint(self) -> str | None:
        """Return the endpoint URL. Without TLS credentials could be intercepted, so that needs `allow_http`."""
        endpoint = self.get("endpoint")
        if endpoint is None:
            return None
        if not endpoint.startswith(("http://", "https://")) or "@" in endpoint or "?" in endpoint:
            raise InvalidInput(
                f"the storage option {_public_name(self.scheme, 'endpoint')} must be an address that begins with "
                "https:// (or http://), without user, password and query"
            )
        if endpoint.startswith("http://") and not self.get_flag("allow_http"):
            raise InvalidInput(
                f"the storage option {_public_name(self.scheme, 'endpoint')} has an address without TLS; to allow "
                "that, add allow_http='true'"
            )
        return endpoint.rstrip("/")

    def validate(self) -> None:
        """Raise for a malformed value before any client library receives it. The message names the option only."""
        self.get_endpoint()
        self.get_int("retries", 0)
        for name in ("connect_timeout", "timeout", "retry_timeout"):
            self.get_seconds(name, 0)
        for name in _FLAGS:
            self.get_flag(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret values, and parts of them that appear alone.

        Addresses contain the parameters of a SAS (shared access signature); its secret part is the signature.
        """
        secrets = [value for name, value in self.values if name in _SECRET]
        signed = (self.get("sas") or "").removeprefix("?")
        secrets += [signed, *(value for name, value in parse_qsl(signed) if name == "sig")]
        secrets += [part.partition("=")[2] for part in signed.split("&") if part.startswith("sig=")]
        return tuple(dict.fromkeys(secret for secret in secrets if secret))

    def without_secrets(self, text: str) -> str:
        """Return the text of another library with the secrets redacted, for messages."""
        return redact(text, self.secrets)


def is_secret(option: str) -> bool:
    """Return whether the option holds a secret, for any of the stores."""
    return any(
        option.lower() in names[name] for names in _OPTIONS_BY_SCHEME.values() for name in _SECRET & names.keys()
    )


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret in the text by asterisks. Very short secrets stay, since they would mangle the text."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "***")
    return text


def parse_settings(scheme: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings for a scheme. An option takes precedence over the environment variable of its name."""
    check_option_names(options)
    lowered = {name.lower(): value for name, value in options.items()}
    variables = {name.lower(): value for name, value in environment.items() if _is_store_variable(name.lower())}
    values: list[tuple[str, str]] = []
    for name, spellings in (*_COMMON.items(), *_OPTIONS_BY_SCHEME[scheme].items()):
        for source in (lowered, variables):
            value = next((source[spelling] for spelling in spellings if source.get(spelling)), None)
            if value is not None:
                values.append((name, value))
                break
    return Settings(scheme, tuple(values))


def options_for(options: Mapping[str, str], *, own: str, other: str) -> dict[str, str]:
    """Return those of the options of the table at `own` that may be used for the location `other`.

    An option of a single store is used for that store only. An option that several stores share, such as `token`, and
    a provider belong to the store of the table. Credentials of one Azure account are never used for another.

    >>> options_for({"token": "x", "aws_region": "y"}, own="az://lake/t", other="s3://lake/t")
    {'aws_region': 'y'}
    """
    own_options, other_options = (
        _OPTIONS_BY_SCHEME.get(uri.partition("://")[0].partition("+")[0].lower()) for uri in (own, other)
    )
    if own_options is None or other_options is None:
        return dict(options)
    if own_options is other_options:
        is_other_account = own_options is _AZURE and _azure_account(own, options) != _azure_account(other, options)
        withheld = _SECRET if is_other_account else frozenset()
        withheld_names = {spelling for name in withheld for spelling in own_options.get(name, ())}
        withheld_names |= {PROVIDER} if withheld else set()
        return {name: value for name, value in options.items() if name.lower() not in withheld_names}
    foreign_names = {
        spelling
        for store_options in (_S3, _GCS, _AZURE)
        if store_options is not other_options
        for spellings in store_options.values()
        for spelling in spellings
    } | {PROVIDER}
    return {name: value for name, value in options.items() if name.lower() not in foreign_names}


def _azure_account(uri: str, options: Mapping[str, str]) -> str | None:
    """Return the Azure account that the URI or an option names."""
    _container, at, host = uri.partition("://")[2].partition("/")[0].partition("@")
    if at:
        return host.partition(".")[0]
    lowered = {name.lower(): value for name, value in options.items()}
    return next((lowered[spelling] for spelling in _AZURE["account"] if spelling in lowered), None)


def check_option_names(options: Mapping[str, str]) -> None:
    """Raise for an option that no store knows, that is not supported, or whose value is not a string."""
    known = {
        spelling
        for names in (_COMMON, *_OPTIONS_BY_SCHEME.values())
        for spellings in names.values()
        for spelling in spellings
    }
    known |= _CODEC_ONLY
    for name, value in options.items():
        if not all(isinstance(text, str) for text in (name, value)):
            raise InvalidInput(
                f"storage_options must be a mapping of strings to strings; {name!r} or its value is not a string"
            )
        if advice := _UNSUPPORTED.get(name.lower()):
            raise Unsupported(f"the storage option {name} is not supported: {advice}")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            raise InvalidInput(
                f"no store has the option {name!r}; " + (f"did you mean {near[0]!r}?" if near else "remove it")
            )


def _is_store_variable(name: str) -> bool:
    return name.startswith(_ENVIRONMENT_PREFIXES)


def _public_name(scheme: str, name: str) -> str:
    return {**_COMMON, **_OPTIONS_BY_SCHEME[scheme]}[name][0]
