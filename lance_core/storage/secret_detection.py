"""Secret detection: decides which options and texts contain a secret, for every place that shows or stores them.

An option is secret by its name (`is_secret`) or by its value (`contains_secret`): a password or signature in a URL, a
private key, the key file of a service account. The names come from `option_names.py`; a name that no store knows is
secret if it looks like that of a secret. A reference (`env:NAME`, or the name of a provider) is no secret.
"""

import re
from urllib.parse import unquote

from lance_core.storage.option_names import KEY_IDS, PUBLIC_NAMES, SECRET_NAMES

SECRET_WORDS = "passw|passphrase|passcode|pwd|secret|token|key|credential|signature|authorization|sas(?![a-z])"
"""Regular expression for names of secrets, to be searched in any case."""
_SECRET_NAME = re.compile(SECRET_WORDS, re.IGNORECASE)
ENVIRONMENT_PREFIX = "env:"
_QUERY_WORDS = r"[^=&;?/\s]*(?:passw|pwd|secret|token|signature|credential|accesskey|account_?key)[^=&;?\s]*"
_SECRETS_IN_TEXT = re.compile(
    "|".join(
        (
            r"://[^/@?\s]*:[^@]*@",  # a password may contain any character except the @ that ends it
            r"(?:https?|sc|spark)://[^/@?\s]+@",  # a token instead of a user
            r"thin:[^/@\s]+/[^@\s]*@",  # user and password in a JDBC URL of Oracle
            rf"(?:^|[?&;\s])(?:sig|pass|api_?key|key|auth|sas|{_QUERY_WORDS})=[^&;\s]",
            r"-----BEGIN [A-Z ]*PRIVATE KEY",
            r"[\"'](?:private_key|client_secret|refresh_token|access_token|password)[\"']\s*:",
            r"\b(?:Bearer|Basic)\s+[\w+/.~-]{16,}=*(?:$|\s)",
        )
    ),
    re.IGNORECASE,
)
_SAS_PARAMETERS = re.compile(r"(?:^|[?&])sv=\d{4}-\d{2}-\d{2}&")


def is_reference(value: object) -> bool:
    """Return whether the value names an environment variable (`env:NAME`) that holds the secret."""
    return isinstance(value, str) and value.startswith(ENVIRONMENT_PREFIX)


def is_secret(name: str) -> bool:
    """Return whether the value of an option is a secret by the name of the option.

    >>> is_secret("account_key"), is_secret("aws_web_identity_token_file"), is_secret("my_password")
    (True, False, True)
    """
    name = name.lower()
    if name in SECRET_NAMES or name in PUBLIC_NAMES:
        return name in SECRET_NAMES
    return _SECRET_NAME.search(name) is not None and not is_key_id(name)


def is_key_id(name: str) -> bool:
    """Return whether the option is the id of a key, which grants no access by itself."""
    return name.lower() in KEY_IDS or name.lower().endswith("key_id")


def contains_secret(text: str) -> bool:
    """Return whether a text contains a secret, so that anyone who reads it could use it.

    >>> contains_secret("https://me:word@host"), contains_secret("https://host/t?X-Amz-Signature=ab")
    (True, True)
    >>> contains_secret("abfss://container@account.dfs.core.windows.net/t")
    False
    """
    return any(
        _SECRETS_IN_TEXT.search(form) is not None or _SAS_PARAMETERS.search(form) is not None
        for form in {text, unquote(text)}
    )


def exposes_secret(name: str, value: object) -> bool:
    """Return whether an option with this value contains a secret itself, by its name or by its value.

    >>> exposes_secret("token", "abc"), exposes_secret("token", "env:TOKEN"), exposes_secret("region", "eu-west-1")
    (True, False, False)
    """
    if is_reference(value) or value in ("", None):
        return False
    return is_secret(name) or contains_secret(str(value))
