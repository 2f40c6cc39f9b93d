"""Object URI: the location of a table in an object store, `s3://bucket/path`, parsed and normalized.

Two spellings of one location must compare equal; otherwise the files below one would not be recognized below the
other.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from lance_core.errors import InvalidInput

SCHEMES = {
    "s3": "Amazon S3 or a compatible store",
    "gs": "Google Cloud Storage",
    "az": "Azure",
    "abfss": "Azure",
}
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._\-]*[A-Za-z0-9])?")
_CONTAINER_OF_ACCOUNT = re.compile(r"[A-Za-z0-9$](?:[A-Za-z0-9\-]*[A-Za-z0-9])?@[a-z0-9.\-]+")


@dataclass(frozen=True, slots=True)
class ObjectUri:
    """Scheme, bucket and key prefix of a location in an object store."""

    scheme: str
    authority: str
    """Name of a bucket, or of a container at an account."""
    prefix: str
    """Key prefix without leading and trailing slashes; empty for the whole bucket."""

    @classmethod
    def parse(cls, uri: str, *, redacted: str) -> "ObjectUri":
        """Parse a URI. `redacted` is the URI without secrets, for messages.

        >>> ObjectUri.parse("s3://lake/orders/", redacted="").uri
        's3://lake/orders'
        """
        scheme, _, rest = uri.partition("://")
        scheme = scheme.lower()
        authority, _, path = rest.partition("/")
        if "?" in rest or "#" in rest:
            raise InvalidInput(
                f"{redacted} has a query or a fragment, which the URI of an object store must not have; pass access "
                "options in storage_options"
            )
        is_valid = _BUCKET.fullmatch(authority) or (scheme == "abfss" and _CONTAINER_OF_ACCOUNT.fullmatch(authority))
        if not is_valid:
            raise InvalidInput(
                f"{redacted} names no bucket, or has an invalid bucket name; write {scheme}://bucket/path, and pass "
                "names and keys in storage_options"
            )
        path = unquote(path).strip("/")
        segments = path.split("/") if path else []
        if any(segment in ("", ".", "..") for segment in segments) or any(ord(c) < 32 or c in "\\\x7f" for c in path):
            raise InvalidInput(
                f"{redacted} cannot be the location of a table: each part between slashes must be a name, other than "
                ". and .., without backslashes and control characters"
            )
        if set("%?#") & set(path):
            raise InvalidInput(
                f"{redacted} has a %, ? or # in a name, which libraries encode differently; choose another name"
            )
        return cls(scheme, authority, path)

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.prefix}" if self.prefix else "")

    def key_of(self, path: str) -> str:
        """Return the object key of a path below this location."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def path_of(self, key: str) -> str:
        """Return the path below this location of an object key."""
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def is_at_or_below(self, other: "ObjectUri") -> bool:
        return (self.scheme, self.authority) == (other.scheme, other.authority) and (
            not other.prefix or f"{self.prefix}/".startswith(f"{other.prefix}/")
        )
