"""From what a person types to a version of a table.

    orders.lance              its newest version
    orders.lance@42           version 42; a detached one by its long number
    orders.lance@v0000000042  the same, as Dagster names the partition
    orders.lance@spring       what the tag stands for; where there is no such tag, the newest version of the branch
    orders.lance@dev:3        a version of the branch; `dev:` its newest, `main:` the main line's

A URI may have an `@` of its own, so the last one counts, and where nothing is there the whole is tried as a URI.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lance_assets.ledger.partition_keys import is_version_key, version_of
from lance_core import InvalidInput, NotFound, Table
from lance_core.shell import Access, check_uri

TABLE_HELP = "a table, or a version of it: URI, URI@42, URI@tag, URI@branch:3"
_BRANCH_VERSION = re.compile(r"([^:@]+):(\d{0,20}|latest)")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """One way to understand what was typed."""

    uri: str
    version: int | None = None
    tag: str | None = None
    branch: str | None = None

    def __str__(self) -> str:
        if self.tag is not None:
            return f"the tag {self.tag!r} of {self.uri}"
        of = self.uri if self.branch is None else f"the branch {self.branch!r} of {self.uri}"
        return f"the newest version of {of}" if self.version is None else f"version {self.version} of {of}"

    def open(self, access: Access) -> Table:
        return Table.open(
            self.uri,
            version=self.version,
            tag=self.tag,
            branch=self.branch,
            storage_options=access.storage_options,
            manifest_store=access.manifest_store,
            bases=access.bases,
        )


@dataclass(frozen=True, slots=True)
class OpenedName:
    table: Table
    parsed: ParsedName

    @property
    def is_newest(self) -> bool:
        """Whether it was asked for whatever is the newest."""
        return self.parsed.version is None and self.parsed.tag is None


def parse_name(text: str) -> tuple[ParsedName, ...]:
    """
    >>> [str(each) for each in readings("s3://lake/orders@v3")]
    ["the tag 'v3' of s3://lake/orders", "the newest version of the branch 'v3' of s3://lake/orders", \
'the newest version of s3://lake/orders@v3']
    """
    whole = ParsedName(text)
    uri, at, rest = text.rpartition("@")
    if not (uri and at and rest) or _is_in_authority(uri):
        return (whole,)
    if rest.isdecimal() and len(rest) <= 20:
        return ParsedName(uri, version=int(rest)), whole
    if found := _BRANCH_VERSION.fullmatch(rest):
        number = found[2]
        return ParsedName(uri, branch=found[1], version=int(number) if number.isdecimal() else None), whole
    if "/" in rest:
        return (whole,)
    names = (ParsedName(uri, tag=rest), ParsedName(uri, branch=rest))
    if is_version_key(rest):
        return (names[0], ParsedName(uri, version=version_of(rest)), whole)
    return *names, whole


def open_named(text: str, access: Access) -> OpenedName:
    """The first of its readings that is there."""
    check_uri(text)
    attempts: dict[ParsedName, NotFound | InvalidInput] = {}
    for reading in parse_name(text):
        try:
            return OpenedName(reading.open(access), reading)
        except NotFound as error:
            attempts[reading] = error
        except InvalidInput as error:
            # What cannot be the name of a tag is the name of none.
            if reading.tag is None and reading.branch is None:
                raise
            attempts[reading] = error
    raise _not_found(text, attempts, access)


def _not_found(
    text: str, attempts: Mapping[ParsedName, NotFound | InvalidInput], access: Access
) -> NotFound | InvalidInput:
    first, *others = attempts.items()
    if not others:
        return first[1]
    reading, error = first
    if not Table.exists(reading.uri, access.storage_options, manifest_store=access.manifest_store):
        said = f"there is no Lance table at {reading.uri}, and none at {text}; check the path"
        return NotFound(f"{said} ({text!r} was understood as {reading})")
    tried = [f"{each}: {why}" for each, why in attempts.items() if each != ParsedName(text)]
    if len(tried) == 1:
        return NotFound(f"{error} ({text!r} was understood as {reading})")
    return NotFound(f"{text!r} names nothing that is there. " + ". ".join(tried))


def _is_in_authority(uri: str) -> bool:
    """Whether what follows belongs to `scheme://user@host`, since no path has begun."""
    _scheme, separator, rest = uri.partition("://")
    return bool(separator) and "/" not in rest
