"""A table as a command line names it: its URI, and how it is reached.

A command line is seen by everybody on the machine, so a secret is not taken from it: an option names the variable of
the environment that has the value. What a table may be named is judged here, once for all commands; nothing is opened.
What comes from a table comes from anybody, and is printed without what a terminal obeys (`plain`).
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from unicodedata import category
from urllib.parse import parse_qsl

from lance_core.errors import InvalidInput
from lance_core.storage.factory import without_secrets
from lance_core.storage.options import bound, is_secret

_PASSWORD = re.compile(r"://[^/@?]*:[^@]*@")
"""It may have any character in it but the one that ends it."""
_SECRET_WORDS = ("pass", "secret", "token")
_QUERY_OF_DYNAMODB = "s3+ddb://"
_UNPRINTED = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Access:
    """How tables are reached; as `Table.open` takes it."""

    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    manifest_store: str | None = field(default=None, repr=False)
    bases: tuple[str, ...] = ()


def add_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--storage-option", metavar="KEY=VALUE", action="append", default=[], help="never a secret; repeatable")
    add(
        "--storage-option-from", metavar="KEY=VARIABLE", action="append", default=[],
        help="one whose value a variable of the environment has; repeatable",
    )  # fmt: skip
    manifests = parser.add_mutually_exclusive_group()
    manifests.add_argument("--manifest-store", metavar="URL", help="where versions are reserved; without a password")
    manifests.add_argument("--manifest-store-from", metavar="VARIABLE", help="the same, from the environment")
    add("--base", metavar="PLACE", action="append", default=[], help="outside the table, and may be read; repeatable")


def access(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Access:
    options = {}
    for text in arguments.storage_option:
        key, value = _pair(text, "--storage-option", "KEY=VALUE")
        if is_secret(key):
            raise InvalidInput(
                f"{key} is a secret, and a command line is seen by everybody on this machine; put it into the "
                f"environment, and name it: --storage-option-from {key}=VARIABLE"
            )
        options[key] = value
    for text in arguments.storage_option_from:
        key, variable = _pair(text, "--storage-option-from", "KEY=VARIABLE")
        options[key] = _variable(variable, environment)
    manifests: str | None = arguments.manifest_store
    if manifests is not None and _has_password(manifests):
        raise InvalidInput(
            "the URL of the manifest store has a password, and a command line is seen by everybody on this machine; "
            "put it into the environment, and name it: --manifest-store-from VARIABLE"
        )
    if arguments.manifest_store_from is not None:
        manifests = _variable(arguments.manifest_store_from, environment)
    return Access(options, manifests, tuple(arguments.base))


def check_uri(uri: str) -> None:
    if _PASSWORD.search(uri) or ("?" in uri and "://" in uri and not uri.lower().startswith(_QUERY_OF_DYNAMODB)):
        raise InvalidInput(
            "the URI has a password or a query, and a command line is seen by everybody on this machine; give it "
            "without, and what it needs with --storage-option-from"
        )


def elsewhere(access: Access, *, own: str, other: str) -> Access:
    """How another table is reached, which the one at `own` names: without what is meant for its store alone."""
    return replace(access, storage_options=bound(access.storage_options, own=own, other=other))


def plain(text: str) -> str:
    """On one line, and without what a terminal obeys.

    >>> plain("red\\x1b[31m")
    'red�[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_printed(each) else "\N{REPLACEMENT CHARACTER}" for each in text)


def _has_password(url: str) -> bool:
    asked = [name.lower() for name, _value in parse_qsl(url.partition("?")[2], keep_blank_values=True)]
    return bool(_PASSWORD.search(url)) or any(word in name for name in asked for word in _SECRET_WORDS)


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise InvalidInput(f"{option} is of the form {form}; this one has no key, or no '='")
    return key, value


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise InvalidInput(f"the environment has no variable {name!r}; set it, or name another")
    return environment[name]


def _is_printed(character: str) -> bool:
    return character.isprintable() and category(character) not in _UNPRINTED


__all__ = ["Access", "access", "add_access", "check_uri", "elsewhere", "plain", "without_secrets"]
