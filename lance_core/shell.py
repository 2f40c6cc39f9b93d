"""Command line access: how a command names a table and passes the options to reach it.

Every user of a machine can list command lines, so a secret is never accepted on one: an option names the environment
variable that holds the value. All commands check their URIs here. This module opens no table. Text that comes from a
table is untrusted, and is printed without terminal control characters (`plain`). Start at `add_access` and `access`.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from unicodedata import category

from lance_core.errors import InvalidInput
from lance_core.storage.factory import without_secrets
from lance_core.storage.options import options_for
from lance_core.storage.secret_detection import contains_secret, is_key_id, is_secret

_DYNAMODB_PREFIX = "s3+ddb://"
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Access:
    """Options to reach a table, as `Table.open` takes them."""

    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    manifest_store: str | None = field(default=None, repr=False)
    bases: tuple[str, ...] = ()
    verify: str = "off"
    trusted: bool = True


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the options that `access` reads to a parser."""
    add = parser.add_argument
    add(
        "--storage-option", metavar="KEY=VALUE", action="append", default=[],
        help="storage option that is not a secret; repeatable",
    )  # fmt: skip
    add(
        "--storage-option-from", metavar="KEY=VARIABLE", action="append", default=[],
        help="storage option whose value is in an environment variable; repeatable",
    )  # fmt: skip
    manifests = parser.add_mutually_exclusive_group()
    manifests.add_argument(
        "--manifest-store", metavar="URL", help="store that reserves versions; the URL must not contain a password"
    )
    manifests.add_argument(
        "--manifest-store-from", metavar="VARIABLE", help="environment variable with the URL of the manifest store"
    )
    add(
        "--base", metavar="LOCATION", action="append", default=[],
        help="location outside the table that may be read; repeatable",
    )  # fmt: skip
    add(
        "--verify", choices=["off", "sample", "read"], default="off",
        help="compare one file in sixteen, or all files, with their checksums before they are read",
    )  # fmt: skip
    add("--untrusted", action="store_true", help="decode files in another process, for a table of unknown origin")


def access(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Access:
    """Return the access options of a parsed command line, with the values from the environment."""
    options = {}
    for text in arguments.storage_option:
        key, value = _split_pair(text, "--storage-option", "KEY=VALUE")
        if is_secret(key) or is_key_id(key) or contains_secret(value):
            raise InvalidInput(
                f"{key} is a secret, and every user of this machine can see a command line; put it into an environment "
                f"variable and name that: --storage-option-from {key}=VARIABLE"
            )
        options[key] = value
    for text in arguments.storage_option_from:
        key, variable = _split_pair(text, "--storage-option-from", "KEY=VARIABLE")
        options[key] = _read_variable(variable, environment)
    manifests: str | None = arguments.manifest_store
    if manifests is not None and contains_secret(manifests):
        raise InvalidInput(
            "the URL of the manifest store contains a password, and every user of this machine can see a command line; "
            "put it into an environment variable and name that: --manifest-store-from VARIABLE"
        )
    if arguments.manifest_store_from is not None:
        manifests = _read_variable(arguments.manifest_store_from, environment)
    return Access(options, manifests, tuple(arguments.base), arguments.verify, not arguments.untrusted)


def check_uri(uri: str) -> None:
    """Raise if the URI contains a password or a query, except the query that names a DynamoDB table."""
    if contains_secret(uri) or ("?" in uri and "://" in uri and not uri.lower().startswith(_DYNAMODB_PREFIX)):
        raise InvalidInput(
            "the URI contains a password or a query, and every user of this machine can see a command line; remove it, "
            "and pass what the store needs with --storage-option-from"
        )


def elsewhere(access: Access, *, own: str, other: str) -> Access:
    """Return the options for the table at `other`, which the table at `own` refers to.

    The result omits options that are meant only for the store of `own`, so that no other store receives a credential.
    """
    return replace(access, storage_options=options_for(access.storage_options, own=own, other=other))


def plain(text: str) -> str:
    """Return the text on one line and without terminal control characters, which become replacement characters.

    >>> plain("red\\x1b[31m")
    'red�[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_printable(char) else "\N{REPLACEMENT CHARACTER}" for char in text)


def _split_pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise InvalidInput(f"{option} must have the form {form}; this one lacks a key or the '='")
    return key, value


def _read_variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise InvalidInput(f"the environment variable {name!r} is not set; set it, or name another")
    return environment[name]


def _is_printable(character: str) -> bool:
    return character.isprintable() and category(character) not in _UNPRINTABLE_CATEGORIES


__all__ = ["Access", "access", "add_access", "check_uri", "elsewhere", "plain", "without_secrets"]
