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
from lance_core.storage.option_names import AZURE, COMMON, GCS, OPTIONS_BY_SCHEME, S3, SECRETS, SUPPORTED, UNSUPPORTED

_FLAGS = (
    "allow_http",
    "allow_invalid_certificates",
    "virtual_hosted",
    "unsigned",
    "bucket_key",
    "requester_pays",
    "single_deletes",
    "emulator",
)
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
        for name in ("requests_max", "bytes_max"):
            if not self.get_int(name, 1):
                raise InvalidInput(f"the storage option {_public_name(self.scheme, name)} must be at least 1")
        for name in ("connect_timeout", "timeout", "retry_timeout"):
            self.get_seconds(name, 0)
        for name in _FLAGS:
            self.get_flag(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret values, and parts of them that appear alone.

        Addresses contain the parameters of a SAS (shared access signature); its secret part is the signature.
        """
        secrets = [value for name, value in self.values if name in SECRETS]
        signed = (self.get("sas") or "").removeprefix("?")
        secrets += [signed, *(value for name, value in parse_qsl(signed) if name == "sig")]
        secrets += [part.partition("=")[2] for part in signed.split("&") if part.startswith("sig=")]
        return tuple(dict.fromkeys(secret for secret in secrets if secret))

    def without_secrets(self, text: str) -> str:
        """Return the text of another library with the secrets redacted, for messages."""
        return redact(text, self.secrets)


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
    for name, spellings in (*COMMON.items(), *OPTIONS_BY_SCHEME[scheme].items()):
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
        OPTIONS_BY_SCHEME.get(uri.partition("://")[0].partition("+")[0].lower()) for uri in (own, other)
    )
    if own_options is None or other_options is None:
        return dict(options)
    if own_options is other_options:
        is_other_account = own_options is AZURE and _azure_account(own, options) != _azure_account(other, options)
        withheld = SECRETS if is_other_account else frozenset()
        withheld_names = {spelling for name in withheld for spelling in own_options.get(name, ())}
        withheld_names |= {PROVIDER} if withheld else set()
        return {name: value for name, value in options.items() if name.lower() not in withheld_names}
    foreign_names = {
        spelling
        for store_options in (S3, GCS, AZURE)
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
    return next((lowered[spelling] for spelling in AZURE["account"] if spelling in lowered), None)


def check_option_names(options: Mapping[str, str]) -> None:
    """Raise for an option that no store knows, that is not supported, or whose value is not a string."""
    for name, value in options.items():
        if not all(isinstance(text, str) for text in (name, value)):
            raise InvalidInput(
                f"storage_options must be a mapping of strings to strings; {name!r} or its value is not a string"
            )
        if advice := UNSUPPORTED.get(name.lower()):
            raise Unsupported(f"the storage option {name} is not supported: {advice}")
        if name.lower() not in SUPPORTED:
            near = difflib.get_close_matches(name.lower(), SUPPORTED, n=1)
            raise InvalidInput(
                f"no store has the option {name!r}; " + (f"did you mean {near[0]!r}?" if near else "remove it")
            )


def _is_store_variable(name: str) -> bool:
    return name.startswith(_ENVIRONMENT_PREFIXES)


def _public_name(scheme: str, name: str) -> str:
    return {**COMMON, **OPTIONS_BY_SCHEME[scheme]}[name][0]
