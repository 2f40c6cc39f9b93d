"""Table names: from a command line argument to a version of a table.

    orders.lance              the newest version
    orders.lance@42           version 42; a detached version by its long number
    orders.lance@v0000000042  the same version, as Dagster names the partition
    orders.lance@spring       the version of the tag; without such a tag, the newest version of the branch
    orders.lance@dev:3        a version of the branch; `dev:` is its newest, `main:` that of the main branch

A URI may contain an `@` itself, so only the last one separates a version. If that name does not exist, the whole
argument is tried as a URI.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lance_assets.ledger.partition_keys import is_version_key, version_of
from lance_core import InvalidInput, NotFound, Table
from lance_core.shell import Access, check_uri

TABLE_HELP = "table or version: URI, URI@42, URI@tag, URI@branch:3"
_BRANCH_VERSION = re.compile(r"([^:@]+):(\d{0,20}|latest)")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """One interpretation of an argument."""

    uri: str
    version: int | None = None
    tag: str | None = None
    branch: str | None = None

    def __str__(self) -> str:
        if self.tag is not None:
            return f"the tag {self.tag!r} of {self.uri}"
        place = self.uri if self.branch is None else f"the branch {self.branch!r} of {self.uri}"
        return f"the newest version of {place}" if self.version is None else f"version {self.version} of {place}"

    def open(self, access: Access) -> Table:
        return Table.open(
            self.uri,
            version=self.version,
            tag=self.tag,
            branch=self.branch,
            storage_options=access.storage_options,
            manifest_store=access.manifest_store,
            bases=access.bases,
            verify=access.verify,
            trusted=access.trusted,
        )


@dataclass(frozen=True, slots=True)
class OpenedName:
    """Opened table, with the interpretation that succeeded."""

    table: Table
    parsed: ParsedName

    @property
    def is_newest(self) -> bool:
        """True if the argument names no version, so that the newest one was opened."""
        return self.parsed.version is None and self.parsed.tag is None


def parse_name(text: str) -> tuple[ParsedName, ...]:
    """Return the possible interpretations of an argument, the preferred one first.

    >>> for name in parse_name("s3://lake/orders@v3"):
    ...     print(name)
    the tag 'v3' of s3://lake/orders
    the newest version of the branch 'v3' of s3://lake/orders
    the newest version of s3://lake/orders@v3
    """
    whole = ParsedName(text)
    uri, at, rest = text.rpartition("@")
    if not (uri and at and rest) or _is_in_authority(uri):
        return (whole,)
    if rest.isdecimal() and len(rest) <= 20:
        return ParsedName(uri, version=int(rest)), whole
    if match := _BRANCH_VERSION.fullmatch(rest):
        number = match[2]
        return ParsedName(uri, branch=match[1], version=int(number) if number.isdecimal() else None), whole
    if "/" in rest:
        return (whole,)
    names = (ParsedName(uri, tag=rest), ParsedName(uri, branch=rest))
    if is_version_key(rest):
        return (names[0], ParsedName(uri, version=version_of(rest)), whole)
    return *names, whole


def open_named(text: str, access: Access) -> OpenedName:
    """Open the first interpretation that exists. Raise `NotFound` or `InvalidInput` that names the interpretations
    tried."""
    check_uri(text)
    attempts: dict[ParsedName, NotFound | InvalidInput] = {}
    for parsed in parse_name(text):
        try:
            return OpenedName(parsed.open(access), parsed)
        except NotFound as error:
            attempts[parsed] = error
        except InvalidInput as error:
            # A text that is not a valid tag or branch name names no tag or branch.
            if parsed.tag is None and parsed.branch is None:
                raise
            attempts[parsed] = error
    raise _not_found(text, attempts, access)


def _not_found(
    text: str, attempts: Mapping[ParsedName, NotFound | InvalidInput], access: Access
) -> NotFound | InvalidInput:
    first, *others = attempts.items()
    if not others:
        return first[1]
    parsed, error = first
    if not Table.exists(parsed.uri, access.storage_options, manifest_store=access.manifest_store):
        return NotFound(
            f"there is no Lance table at {parsed.uri}, and none at {text}; check the path ({text!r} was understood as "
            f"{parsed})"
        )
    tried = [f"{name}: {reason}" for name, reason in attempts.items() if name != ParsedName(text)]
    if len(tried) == 1:
        return NotFound(f"{error} ({text!r} was understood as {parsed})")
    return NotFound(f"{text!r} does not exist; tried " + "; ".join(tried))


def _is_in_authority(uri: str) -> bool:
    """Return whether the `@` belongs to `scheme://user@host`, since no path has begun."""
    _scheme, separator, rest = uri.partition("://")
    return bool(separator) and "/" not in rest
