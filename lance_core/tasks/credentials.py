"""Storage options that somebody gives as options of a data source, where they are read by more than who gave them.

Spark tells the options of a query to its user interface, its REST API and its event log. What it takes for a secret by
the name of the option it hides; `account_key` it does not. So a secret is named (`env:NAME`, or a `provider`), or told
under a name that is hidden everywhere; anything else is refused.
"""

import re
from collections.abc import Mapping

from lance_core.errors import InvalidInput
from lance_core.storage.options import is_secret
from lance_core.storage.secret_references import is_reference

STORAGE, SECRET, MANIFEST_STORE = "storage.", "secret.", "manifest_store"
_HIDDEN = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""What Spark hides by itself, unless it was told otherwise (`spark.redaction.regex`)."""
_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@|[?&][^=&]*(pass|secret|token)[^=&]*=", re.IGNORECASE)


def parse_storage_options(given: Mapping[str, str]) -> dict[str, str]:
    """Of all options those for the store, whichever of the two prefixes they have.

    >>> storage_options({"storage.aws_region": "eu-west-1", "secret.account_key": "...", "path": "az://lake/t"})
    {'aws_region': 'eu-west-1', 'account_key': '...'}
    """
    found: dict[str, str] = {}
    for key, value in given.items():
        prefix = next((each for each in (STORAGE, SECRET) if key.lower().startswith(each)), None)
        if prefix is None:
            continue
        name = key[len(prefix) :]
        if is_secret(name) and not is_reference(value) and not _HIDDEN.search(key) and not is_key_id(name):
            raise InvalidInput(
                f"the option {key} is a secret, and Spark may show it in its user interface and its event log. Name "
                f"where it is ({key}='env:VARIABLE', or storage.provider='package.module:function'), or tell it as "
                f"{SECRET}{name}, which Spark hides"
            )
        if name in found:
            raise InvalidInput(f"the storage option {name} is given twice, as {STORAGE}{name} and {SECRET}{name}")
        found[name] = value
    store = given.get(MANIFEST_STORE) or given.get(MANIFEST_STORE.replace("_", "")) or ""
    if has_password(store):
        raise InvalidInput(
            f"the option {MANIFEST_STORE} has a password in it, and Spark may show it in its user interface and its "
            f"event log; put it into a variable of the environment, and name that: {MANIFEST_STORE}='env:VARIABLE'"
        )
    return found


def has_password(text: str) -> bool:
    """Of a URI: whether who reads it could use it."""
    return _PASSWORD.search(text) is not None


def is_key_id(name: str) -> bool:
    """Of a key, which opens nothing by itself."""
    return name.lower().endswith("key_id")


__all__ = ["has_password", "is_key_id", "is_reference", "is_secret", "parse_storage_options"]
