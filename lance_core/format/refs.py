"""References: tags and branches as stored, with the grammar of their names and the JSON of one reference.

    _refs/tags/{name}.json              the version and the branch that a tag refers to
    _refs/branches/{name}.json          where a branch began; `/` in its name is `%2F`
    tree/{name}/                        the branch itself: a table directory, nested for each `/` in the name

All of these files are below the root of the main branch. A name is checked before it becomes part of a path, whether a
caller passed it or a file contains it. `versions/refs.py` reads and writes references; this module does no I/O.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeGuard

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format.ids import Version

REFERENCES = "_refs"
TAGS = f"{REFERENCES}/tags"
BRANCHES = f"{REFERENCES}/branches"
TREE = "tree"
CLONES = "_lance_assets/clones"
"""In the source table, this directory holds one record for each shallow clone that this library made, since the clone
reads the files of the source."""
MAIN = "main"
"""The name of the main branch, where a name is required."""

_DIRECTORIES_OF_A_TABLE = frozenset(
    {"_versions", "_transactions", "_deletions", "_indices", "_refs", "_lance_assets", "data", "tree"}
)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_FNV_PRIME = 0x100000001B3
_FNV_BASES = (0xCBF29CE484222325, 0xCBF29CE484222325 ^ 0x9E3779B97F4A7C15)
_U64 = 2**64 - 1
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999."""
_MAX_BYTES = 200


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a version. It protects the version from cleanup."""

    branch: str | None
    """`None` means the main branch."""
    version: Version
    manifest_bytes: int
    created: str | None = None
    """The stored time, to the nanosecond; `None` if an older release wrote the tag."""
    updated: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        branch = "" if self.branch is None else f", branch={self.branch!r}"
        created = f", created={self.created[:19]!r}" if self.created else ""
        return f"Tag(version={self.version}{branch}{created}{_metadata_text(self.metadata)})"

    @property
    def created_at(self) -> datetime | None:
        return datetime.fromisoformat(self.created) if self.created else None

    @property
    def updated_at(self) -> datetime | None:
        return datetime.fromisoformat(self.updated) if self.updated else None


@dataclass(frozen=True, slots=True)
class Branch:
    """The version from which a branch began."""

    parent_branch: str | None
    """`None` means the main branch."""
    parent_version: Version
    manifest_bytes: int
    created_seconds: int
    lineage: tuple[tuple[int, str], ...]
    """From the main branch down to this one: the version at which each ancestor was branched off, and an id of that
    event."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        parent = f"{self.parent_branch or MAIN}:{self.parent_version}"
        created = f"{self.created_at:%Y-%m-%dT%H:%M:%S}"
        return f"Branch(parent={parent!r}, created={created!r}{_metadata_text(self.metadata)})"

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created_seconds, UTC)

    def is_below(self, other: "Branch") -> bool:
        """Return whether this branch descends from the other one."""
        return len(self.lineage) > len(other.lineage) and self.lineage[: len(other.lineage)] == other.lineage


def _metadata_text(metadata: Mapping[str, str]) -> str:
    return f", metadata={dict(metadata)!r}" if metadata else ""


def timestamp(now_ns: int) -> str:
    seconds, nanos = divmod(now_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def check_tag_name(name: str) -> None:
    """Raise `InvalidInput` if a tag cannot have this name.

    >>> check_tag_name("a/b")
    Traceback (most recent call last):
    lance_core.errors.InvalidInput: 'a/b' cannot name a tag: it may only contain letters, digits, '.', '-' and '_'
    """
    if problem := _tag_name_problem(name):
        raise InvalidInput(f"{name!r} cannot name a tag: {problem}")


def check_branch_name(name: str) -> None:
    if problem := _branch_name_problem(name):
        raise InvalidInput(f"{name!r} cannot name a branch: {problem}")


def is_branch_name(name: str) -> bool:
    return _branch_name_problem(name) is None


def check_new_branch_name(name: str) -> None:
    """Check the name of a new branch, more strictly than that of an existing one: with a segment such as `data`, the
    branch would lie inside the directories of another branch."""
    check_branch_name(name)
    if taken := sorted(_DIRECTORIES_OF_A_TABLE & set(name.split("/"))):
        raise InvalidInput(f"{name!r} cannot name a branch: {taken[0]!r} is a directory of the table's own files")


def tag_path(name: str) -> str:
    check_tag_name(name)
    return f"{TAGS}/{_escape(name)}.json"


def branch_path(name: str) -> str:
    check_branch_name(name)
    return f"{BRANCHES}/{_escape(name)}.json"


def branch_directory(name: str) -> str:
    check_branch_name(name)
    return f"{TREE}/{name}"


def parse_reference_name(path: str) -> str | None:
    """Return the name that the file of a reference encodes, or `None` if it is not a reference, such as a temporary
    file."""
    file = path.rpartition("/")[2]
    if not file.endswith(".json") or file.startswith(".tmp"):
        return None
    name = _unescape(file.removesuffix(".json"))
    find_problem = _tag_name_problem if path.startswith(TAGS) else _branch_name_problem
    if name is None or (problem := find_problem(name)):
        raise Corrupt(f"is not the name of a reference{f': {problem}' if name else ''}", path=path, field="name")
    return name


def encode_tag(tag: Tag) -> bytes:
    return _dump(
        {
            "branch": tag.branch,
            "version": tag.version,
            "createdAt": tag.created,
            "updatedAt": tag.updated,
            "manifestSize": tag.manifest_bytes,
            "metadata": dict(tag.metadata),
        }
    )


def decode_tag(data: bytes, *, path: str) -> Tag:
    members = _JsonMembers(data, path)
    branch = members.optional_text("branch")
    if branch is not None and (problem := _branch_name_problem(branch)):
        raise Corrupt(f"has the invalid branch name {branch!r}: {problem}", path=path, field="branch")
    return Tag(
        branch=branch,
        version=members.version("version"),
        manifest_bytes=members.number("manifestSize"),
        created=members.time("createdAt"),
        updated=members.time("updatedAt"),
        metadata=members.texts("metadata"),
    )


def encode_branch(branch: Branch) -> bytes:
    return _dump(
        {
            "parentBranch": branch.parent_branch,
            "identifier": {"version_mapping": [list(step) for step in branch.lineage]},
            "parentVersion": branch.parent_version,
            "createAt": branch.created_seconds,
            "manifestSize": branch.manifest_bytes,
            "metadata": dict(branch.metadata),
        }
    )


def decode_branch(data: bytes, *, name: str, path: str) -> Branch:
    members = _JsonMembers(data, path)
    parent = members.optional_text("parentBranch")
    if parent is not None and (problem := _branch_name_problem(parent)):
        raise Corrupt(f"has the invalid parent branch name {parent!r}: {problem}", path=path, field="parentBranch")
    version, created = members.version("parentVersion"), members.number("createAt", highest=_LAST_SECOND)
    return Branch(
        parent_branch=parent,
        parent_version=version,
        manifest_bytes=members.number("manifestSize"),
        created_seconds=created,
        lineage=members.lineage() or ((0, _synthetic_id(name, parent, version, created)),),
        metadata=members.texts("metadata"),
    )


def _tag_name_problem(name: str) -> str | None:
    """Return why a tag cannot have this name, or `None`."""
    if not isinstance(name, str):
        return "it has to be a string"
    if not name or _byte_length(name) > _MAX_BYTES:
        return f"it has to be 1 to {_MAX_BYTES} bytes long"
    if not _is_plain(name):
        return "it may only contain letters, digits, '.', '-' and '_'"
    if name.startswith(".") or name.endswith((".", ".lock")) or ".." in name:
        return "it may not begin or end with '.', end with '.lock' or contain '..'"
    return None


def _branch_name_problem(name: str) -> str | None:
    """Return why a branch cannot have this name, or `None`."""
    if not isinstance(name, str):
        return "it has to be a string"
    if not name or _byte_length(name) > _MAX_BYTES:
        return f"it has to be 1 to {_MAX_BYTES} bytes long"
    if name == MAIN:
        return "it is the name of the main branch, which every table has"
    segments = name.split("/")
    if "" in segments:
        return "no segment between '/' may be empty"
    if ".." in name or "." in segments or name.endswith(".lock"):
        return "it may not contain '..', have a segment '.' or end with '.lock'"
    if not all(map(_is_plain, segments)):
        return "it may only contain letters, digits, '.', '-' and '_', in segments separated by '/'"
    return None


def _byte_length(name: str) -> int:
    return len(name.encode(errors="replace"))


def _is_plain(text: str) -> bool:
    return all(character.isalnum() or character in "._-" for character in text)


def _escape(name: str) -> str:
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in name.encode())


def _unescape(text: str) -> str | None:
    parts = re.split(r"%([0-9A-Fa-f]{2})", text)
    pieces = [bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(parts)]
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError:
        return None


def _synthetic_id(name: str, parent: str | None, version: int, created: int) -> str:
    """Return the id of a branch for which a release of 2025 wrote none: two FNV-1a hashes of the fields that it did
    write."""
    text = f"branch_name={name}\nparent_branch={parent or ''}\nparent_version={version}\ncreate_at={created}"
    halves = []
    for number in _FNV_BASES:
        for byte in text.encode():
            number = ((number ^ byte) * _FNV_PRIME) & _U64
        halves.append(f"{number:016x}")
    return "".join(halves)


def _dump(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, indent=2, ensure_ascii=False).encode()


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a string that UTF-8 can encode. JSON can contain lone surrogates, which UTF-8 cannot
    encode."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


class _JsonMembers:
    """Typed access to the members of an untrusted JSON object."""

    def __init__(self, data: bytes, path: str) -> None:
        self._path = path
        try:
            members = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Corrupt("is not JSON", path=path, field="reference") from error
        if not isinstance(members, dict):
            raise Corrupt("is not a JSON object", path=path, field="reference")
        self._members: dict[str, object] = members

    def optional_text(self, name: str) -> str | None:
        value = self._members.get(name)
        if value is not None and not _is_text(value):
            raise self._invalid_member(name)
        return value

    def time(self, name: str) -> str | None:
        text = self.optional_text(name)
        try:
            if text is not None:
                datetime.fromisoformat(text)
        except ValueError as error:
            raise self._invalid_member(name) from error
        return text

    def number(self, name: str, *, highest: int = _U64) -> int:
        value = self._members.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            raise self._invalid_member(name)
        return value

    def version(self, name: str) -> Version:
        if not (number := self.number(name)):
            raise self._invalid_member(name)
        return Version(number)

    def texts(self, name: str) -> Mapping[str, str]:
        value = self._members.get(name) or {}
        texts = [*value, *value.values()] if isinstance(value, dict) else []
        if not isinstance(value, dict) or not all(map(_is_text, texts)):
            raise self._invalid_member(name)
        return value

    def lineage(self) -> tuple[tuple[int, str], ...]:
        identifier = self._members.get("identifier") or {}
        steps = identifier.get("version_mapping", []) if isinstance(identifier, dict) else None
        if not isinstance(steps, list):
            raise self._invalid_member("identifier")
        lineage = []
        for step in steps:
            if not (isinstance(step, list) and len(step) == 2):
                raise self._invalid_member("identifier")
            version, uuid = step
            if not (isinstance(version, int) and _is_text(uuid)):
                raise self._invalid_member("identifier")
            lineage.append((version, uuid))
        return tuple(lineage)

    def _invalid_member(self, name: str) -> Corrupt:
        return Corrupt(f"has the invalid value {self._members.get(name)!r} for {name}", path=self._path, field=name)
