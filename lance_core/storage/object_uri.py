"""Where on an object store a table is: `s3://bucket/path`, taken apart and put together in one way only.

Two spellings of one place must not count as two, or the files of one would be strangers to the other.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from lance_core.errors import InvalidInput

SCHEMES = {
    "s3": "Amazon S3 and what speaks its language",
    "gs": "Google Cloud Storage",
    "az": "Azure",
    "abfss": "Azure",
}
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._\-]*[A-Za-z0-9])?")
_CONTAINER_OF_ACCOUNT = re.compile(r"[A-Za-z0-9$](?:[A-Za-z0-9\-]*[A-Za-z0-9])?@[a-z0-9.\-]+")


@dataclass(frozen=True, slots=True)
class ObjectUri:
    scheme: str
    authority: str
    """A bucket, or a container at an account."""
    prefix: str
    """Without slashes around it; empty at the top."""

    @classmethod
    def of(cls, uri: str, *, shown: str) -> "ObjectUri":
        """`shown` is the URI without secrets, for messages.

        >>> Place.of("s3://lake/orders/", shown="").uri
        's3://lake/orders'
        """
        scheme, _, rest = uri.partition("://")
        scheme = scheme.lower()
        authority, _, path = rest.partition("/")
        if "?" in rest or "#" in rest:
            raise InvalidInput(
                f"{shown} has a query or a fragment, and a place in a store has neither; what says how to reach it "
                "goes into storage_options"
            )
        known = _BUCKET.fullmatch(authority) or (scheme == "abfss" and _CONTAINER_OF_ACCOUNT.fullmatch(authority))
        if not known:
            raise InvalidInput(
                f"{shown} names no bucket, or one that cannot be; write {scheme}://bucket/path, and give names and "
                "keys in storage_options"
            )
        path = unquote(path).strip("/")
        segments = path.split("/") if path else []
        if any(segment in ("", ".", "..") for segment in segments) or any(ord(c) < 32 or c in "\\\x7f" for c in path):
            raise InvalidInput(
                f"{shown} is not the place of a table: between two slashes there is a name, other than . and .., "
                "without backslashes and control characters"
            )
        if set("%?#") & set(path):
            raise InvalidInput(
                f"{shown} has a %, ? or # in a name, which not every library writes alike; choose another"
            )
        return cls(scheme, authority, path)

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.prefix}" if self.prefix else "")

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def path(self, key: str) -> str:
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def is_at_or_below(self, other: "ObjectUri") -> bool:
        return (self.scheme, self.authority) == (other.scheme, other.authority) and (
            not other.prefix or f"{self.prefix}/".startswith(f"{other.prefix}/")
        )


def is_in_object_store(uri: str) -> bool:
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES
