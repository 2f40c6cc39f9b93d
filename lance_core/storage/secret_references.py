"""Secret references: storage options that name where a secret is, instead of containing it.

    {"aws_secret_access_key": "env:ORDERS_KEY"}       an environment variable of the process that uses the option
    {"provider": "lake.access:credentials"}           a function, called in each process that uses the option

A provider is called with the URI of the store and returns storage options. If these include `expires_at_millis`, it
is called again `refresh_offset_millis` (by default a minute) before that time. So only a name is pickled, planned,
shown or sent to another process. A provider is called for the store of its own table only, never for another store.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module

from lance_core.errors import InvalidInput
from lance_core.storage.options import PROVIDER, Settings, check_option_names, parse_settings
from lance_core.storage.secret_detection import ENVIRONMENT_PREFIX, is_reference, is_secret

_EXPIRES_OPTION, _REFRESH_OPTION = "expires_at_millis", "refresh_offset_millis"
_REFRESH_OFFSET_MILLIS = 60_000
_CACHE_SIZE = 64
_provided: dict[tuple[int, str, str], tuple[dict[str, str], int | None]] = {}
"""By process, provider and URI: the provided options, and when to call the provider again in milliseconds since 1970.
Two threads may both call a provider, which does no harm.
"""

OptionPairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of one store, as configured and with their references resolved."""

    scheme: str
    uri: str
    configured: OptionPairs = field(default=(), repr=False)
    fixed: Settings | None = field(default=None, repr=False, compare=False)
    """Settings parsed when the store was opened; `None` if the options have references."""

    @classmethod
    def parse(cls, scheme: str, uri: str, configured: Mapping[str, str]) -> "StoreOptions":
        """Parse and validate options, which resolves their references once."""
        fixed = None if has_references(configured) else parse_settings(scheme, configured)
        options = cls(scheme, uri, tuple(sorted(configured.items())), fixed)
        options.settings.validate()
        return options

    @property
    def resolved(self) -> OptionPairs:
        """Options with their references resolved now."""
        return (
            self.configured
            if self.fixed is not None
            else tuple(sorted(resolve_options(dict(self.configured), self.uri).items()))
        )

    @property
    def settings(self) -> Settings:
        return self.fixed or _parsed_settings(self.scheme, self.resolved)


@lru_cache(maxsize=_CACHE_SIZE)
def _parsed_settings(scheme: str, options: OptionPairs) -> Settings:
    return parse_settings(scheme, dict(options))


def has_references(configured: Mapping[str, str]) -> bool:
    """Return whether any option names a provider or an environment variable."""
    return PROVIDER in configured or any(map(is_reference, configured.values()))


def resolve_options(configured: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the options with their secrets. Options from a provider override the configured ones."""
    options = {
        name: resolve_secrets(value, f"the storage option {name!r}")
        for name, value in configured.items()
        if name != PROVIDER
    }
    if PROVIDER in configured:
        options |= _provided_options(configured[PROVIDER], uri)
    return options


def resolve_nested_options(configured: Mapping[str, object], uri: str) -> dict[str, object]:
    """Return options of another library, such as fsspec, with their secrets. Values may be mappings and lists."""
    options = {
        name: _resolve_nested(value, f"the option {name!r} for {uri}")
        for name, value in configured.items()
        if name != PROVIDER
    }
    if PROVIDER in configured:
        options |= _provided_options(str(configured[PROVIDER]), uri, check=None)
    return options


def _resolve_nested(value: object, what: str) -> object:
    if isinstance(value, Mapping):
        return {name: _resolve_nested(item, f"{what}, {name!r}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve_nested(item, what) for item in value]
    return resolve_secrets(value, what) if isinstance(value, str) else value


def secrets_of_nested(configured: object, resolved: object, name: str = "") -> tuple[str, ...]:
    """Return the texts among resolved options that are secret: by their name, or because a reference names them."""
    if isinstance(resolved, Mapping):
        given = configured if isinstance(configured, Mapping) else {}
        return tuple(
            secret for key, item in resolved.items() for secret in secrets_of_nested(given.get(key), item, str(key))
        )
    if isinstance(resolved, list | tuple):
        items = configured if isinstance(configured, list | tuple) else [None] * len(resolved)
        return tuple(
            secret
            for item, value in zip(items, resolved, strict=True)
            for secret in secrets_of_nested(item, value, name)
        )
    is_text = isinstance(resolved, str) and resolved
    return (str(resolved),) if is_text and (is_reference(configured) or is_secret(name)) else ()


def resolve_secrets(value: str, what: str) -> str:
    """Return the value, or that of the environment variable it refers to. `what` names the value in the message."""
    if not is_reference(value):
        return value
    variable = value.removeprefix(ENVIRONMENT_PREFIX)
    if (secret := os.environ.get(variable)) is None:
        raise InvalidInput(
            f"{what} refers to the environment variable {variable!r}, which this process does not have; set it in "
            "every process that opens the table (for Spark executors in their image, or with "
            f"spark.executorEnv.{variable} in a session of open_session or SparkSessionResource, which hide its value "
            "on Spark's pages), or name a provider"
        )
    return secret


def _provided_options(
    name: str, uri: str, check: Callable[[Mapping[str, str]], None] | None = check_option_names
) -> dict[str, str]:
    """Return the options of a provider, from the cache until they have to be refreshed. `check` checks their names."""
    key = (os.getpid(), name, uri)
    options, refresh_at_millis = _provided.get(key, ({}, 0))
    if refresh_at_millis is not None and time.time() * 1000 >= refresh_at_millis:
        options, refresh_at_millis = _call_provider(name, uri, check)
        while len(_provided) >= _CACHE_SIZE:
            del _provided[next(iter(_provided))]
        _provided[key] = options, refresh_at_millis
    return options


def _call_provider(
    name: str, uri: str, check: Callable[[Mapping[str, str]], None] | None
) -> tuple[dict[str, str], int | None]:
    """Return the options of a provider, and when to call it again in milliseconds since 1970 (`None`: never)."""
    returned = _import_provider(name)(uri)
    if not isinstance(returned, Mapping) or not all(
        isinstance(text, str) for pair in returned.items() for text in pair
    ):
        raise InvalidInput(f"the provider {name} must return storage options, a mapping of strings to strings")
    options = dict(returned)
    expires_at = options.pop(_EXPIRES_OPTION, None)
    refresh_offset = options.pop(_REFRESH_OPTION, None) or str(_REFRESH_OFFSET_MILLIS)
    if check is not None:
        check(options)
    if has_references(options):
        raise InvalidInput(
            f"the provider {name} returned a reference (env:... or provider); it must return the values themselves"
        )
    if expires_at is None:
        return options, None
    if not (expires_at.isdecimal() and refresh_offset.isdecimal()):
        raise InvalidInput(
            f"the provider {name} returned {_EXPIRES_OPTION} or {_REFRESH_OPTION} that is not a decimal number"
        )
    return options, int(expires_at) - int(refresh_offset)


def _import_provider(name: str) -> Callable[[str], object]:
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise InvalidInput(
            f"the storage option {PROVIDER} must name a function as package.module:function, not {name!r}"
        )
    try:
        provider: object = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"this process cannot import the provider {name} ({error}); it must be importable in every process that "
            "opens the table"
        ) from error
    if not callable(provider):
        raise InvalidInput(f"the provider {name} is not callable; name a function")
    return provider
