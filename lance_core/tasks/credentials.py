"""Credentials in data source options: refuses secrets that Spark would show to other users.

Spark shows the options of a query in its user interface, its REST API and its event log. It redacts options whose
name looks like that of a secret; `account_key` does not. So a secret must be a reference (`env:NAME`, or a
`provider`) or be passed under a name that Spark always redacts. Anything else is refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from lance_core.errors import InvalidInput
from lance_core.storage.option_names import PUBLIC_NAMES, SECRET_NAMES
from lance_core.storage.options import PROVIDER, check_option_names
from lance_core.storage.secret_detection import (
    ENVIRONMENT_PREFIX,
    SECRET_WORDS,
    contains_secret,
    exposes_secret,
    is_key_id,
    is_reference,
    is_secret,
)

STORAGE, SECRET, MANIFEST_STORE = "storage.", "secret.", "manifest_store"
SPARK_REDACTS = "(?i)secret|password|token|access[.]?key"
"""Default of `spark.redaction.regex`: Spark redacts options and settings whose name or value matches."""
_REDACTED = re.compile(SPARK_REDACTS)


def parse_storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options among all options, without either of their two prefixes.

    >>> parse_storage_options({"storage.aws_region": "eu-west-1", "secret.account_key": "...", "path": "az://lake/t"})
    {'aws_region': 'eu-west-1', 'account_key': '...'}
    """
    parsed: dict[str, str] = {}
    for key, value in options.items():
        prefix = next(
            (known_prefix for known_prefix in (STORAGE, SECRET) if key.lower().startswith(known_prefix)), None
        )
        if prefix is None:
            continue
        name = key[len(prefix) :]
        check_storage_option_names([name])
        if exposes_secret(name, value) and not _REDACTED.search(key):
            raise InvalidInput(
                f"the option {key} is a secret, and Spark may show it in its user interface and its event log. Pass a "
                f"reference ({key}='env:VARIABLE', or storage.provider='package.module:function'), or pass the value "
                f"as {SECRET}{name}, which Spark redacts"
            )
        if name in parsed:
            raise InvalidInput(
                f"the storage option {name} is given twice, as {STORAGE}{name} and {SECRET}{name}; keep one"
            )
        parsed[name] = value
    store = options.get(MANIFEST_STORE) or options.get(MANIFEST_STORE.replace("_", "")) or ""
    if not is_reference(store) and contains_secret(store):
        raise InvalidInput(
            f"the option {MANIFEST_STORE} has a password in it, and Spark may show it in its user interface and its "
            f"event log; put it into an environment variable and pass a reference: {MANIFEST_STORE}='env:VARIABLE'"
        )
    return parsed


def check_storage_option_names(names: Iterable[str]) -> None:
    """Raise for a storage option that no store has or that is not supported."""
    check_option_names({name: "" for name in names if name != PROVIDER})


def is_storage_option(name: str) -> bool:
    """Return whether a store has an option of this name, supported or not."""
    return name.lower() in SECRET_NAMES | PUBLIC_NAMES


def referenced_variables(options: Mapping[str, object] | None, manifest_store: object) -> tuple[str, ...]:
    """Return the names of the environment variables that hold the secrets of a table or of source files."""
    return tuple(
        str(value).removeprefix(ENVIRONMENT_PREFIX)
        for value in (*_leaves(options or {}), manifest_store)
        if is_reference(value)
    )


def _leaves(value: object) -> Iterator[object]:
    """Yield the values in nested mappings and lists."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    if items is None:
        yield value
        return
    for item in items:
        yield from _leaves(item)


__all__ = [
    "SECRET_WORDS",
    "SPARK_REDACTS",
    "check_storage_option_names",
    "contains_secret",
    "exposes_secret",
    "is_key_id",
    "is_reference",
    "is_secret",
    "is_storage_option",
    "parse_storage_options",
    "referenced_variables",
]
