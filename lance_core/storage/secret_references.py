"""Storage options that say where a secret is, instead of what it is.

    {"aws_secret_access_key": "env:ORDERS_KEY"}       a variable of the environment of whichever process uses it
    {"provider": "lake.access:credentials"}           a function, asked in each process that uses it, with the place

A provider is called with the URI of the place, and gives storage options. Where these have `expires_at_millis`, it is
asked again `refresh_offset_millis` (a minute) before that time. So what travels to other processes, is pickled, planned
or shown, is a name. A provider is asked about its table's own store: another one is told nothing of it.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module

from lance_core.errors import InvalidInput
from lance_core.storage.options import PROVIDER, Settings, check_names, settings

_VARIABLE = "env:"
_EXPIRES, _AHEAD = "expires_at_millis", "refresh_offset_millis"
_AHEAD_MILLIS = 60_000
_KEPT = 64
_provided: dict[tuple[int, str, str], tuple[dict[str, str], int | None]] = {}
"""By process, provider and place: what it gave, and when it is asked again. Two threads may both ask; no harm."""

Told = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of one store, as they were told and as they are now."""

    scheme: str
    uri: str
    configured: Told = field(default=(), repr=False)
    fixed: Settings | None = field(default=None, repr=False, compare=False)
    """Where nothing is looked up: as understood when the store was opened."""

    @classmethod
    def of(cls, scheme: str, uri: str, told: Mapping[str, str]) -> "StoreOptions":
        kept = tuple(sorted(told.items()))
        options = cls(scheme, uri, kept, None if refers(told) else settings(scheme, told))
        options.settings.check()
        return options

    @property
    def given(self) -> Told:
        return (
            self.configured
            if self.fixed is not None
            else tuple(sorted(resolved(dict(self.configured), self.uri).items()))
        )

    @property
    def settings(self) -> Settings:
        return self.fixed or _understood(self.scheme, self.given)


@lru_cache(maxsize=_KEPT)
def _understood(scheme: str, given: Told) -> Settings:
    return settings(scheme, dict(given))


def refers(told: Mapping[str, str]) -> bool:
    """Whether something is looked up."""
    return PROVIDER in told or any(map(is_reference, told.values()))


def is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_VARIABLE)


def resolved(told: Mapping[str, str], uri: str) -> dict[str, str]:
    """With the secrets. What a provider gives counts more than what stands beside its name."""
    found = {
        name: resolve_secrets(value, f"the storage option {name!r}") for name, value in told.items() if name != PROVIDER
    }
    if PROVIDER in told:
        found |= _from_provider(told[PROVIDER], uri)
    return found


def resolve_secrets(value: str, what: str) -> str:
    if not is_reference(value):
        return value
    variable = value.removeprefix(_VARIABLE)
    if (found := os.environ.get(variable)) is None:
        raise InvalidInput(
            f"{what} is in the variable {variable!r} of the environment, and this process has none; set it where the "
            "work is done too (for executors of Spark: spark.executorEnv, or their image), or name a provider"
        )
    return found


def _from_provider(name: str, uri: str) -> dict[str, str]:
    key = (os.getpid(), name, uri)
    given, again_at = _provided.get(key, ({}, 0))
    if again_at is not None and time.time() * 1000 >= again_at:
        given, again_at = _asked(name, uri)
        while len(_provided) >= _KEPT:
            del _provided[next(iter(_provided))]
        _provided[key] = given, again_at
    return given


def _asked(name: str, uri: str) -> tuple[dict[str, str], int | None]:
    answer = _function(name)(uri)
    if not isinstance(answer, Mapping) or not all(isinstance(each, str) for pair in answer.items() for each in pair):
        raise InvalidInput(f"the provider {name} gives storage options, a mapping of texts to texts, and gave others")
    given = dict(answer)
    expires, ahead = given.pop(_EXPIRES, None), given.pop(_AHEAD, None) or str(_AHEAD_MILLIS)
    check_names(given)
    if refers(given):
        raise InvalidInput(f"the provider {name} gives what is to be used, and gave the name of something else")
    if expires is None:
        return given, None
    if not (expires.isdecimal() and ahead.isdecimal()):
        raise InvalidInput(f"the provider {name} gave {_EXPIRES} or {_AHEAD} that are not whole numbers")
    return given, int(expires) - int(ahead)


def _function(name: str) -> Callable[[str], object]:
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise InvalidInput(f"the storage option {PROVIDER} names a function as package.module:function, not {name!r}")
    try:
        found: object = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"there is no provider {name} in this process ({error}); it has to be importable wherever the work is done"
        ) from error
    if not callable(found):
        raise InvalidInput(f"the provider {name} is no function")
    return found
