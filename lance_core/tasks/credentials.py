"""Credentials in data source options: refuses secrets that Spark would show to other users.

Spark shows the options of a query in its user interface, its REST API and its event log. It redacts options whose
name looks like that of a secret; `account_key` does not. So a secret must be a reference (`env:NAME`, or a
`provider`) or be passed under a name that Spark always redacts. Anything else is refused.
"""

import re
from collections.abc import Mapping

from lance_core.errors import InvalidInput
from lance_core.storage.options import is_secret
from lance_core.storage.secret_references import is_reference

STORAGE, SECRET, MANIFEST_STORE = "storage.", "secret.", "manifest_store"
_HIDDEN = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Option names that Spark redacts by default (`spark.redaction.regex`)."""
_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@|[?&][^=&]*(pass|secret|token)[^=&]*=", re.IGNORECASE)


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
        if is_secret(name) and not is_reference(value) and not _HIDDEN.search(key) and not is_key_id(name):
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
    if has_password(store):
        raise InvalidInput(
            f"the option {MANIFEST_STORE} has a password in it, and Spark may show it in its user interface and its "
            f"event log; put it into an environment variable and pass a reference: {MANIFEST_STORE}='env:VARIABLE'"
        )
    return parsed


def has_password(text: str) -> bool:
    """Return whether the URI contains a password or token, so that anyone who reads it could use it."""
    return _PASSWORD.search(text) is not None


def is_key_id(name: str) -> bool:
    """Return whether the option is the id of a key, which grants no access by itself."""
    return name.lower().endswith("key_id")


__all__ = ["has_password", "is_key_id", "is_reference", "is_secret", "parse_storage_options"]
