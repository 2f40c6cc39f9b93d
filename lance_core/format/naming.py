"""File naming: the names of a table's files, and what a name encodes. Paths are relative to the table's root and use
`/`.

Names are matched strictly: a live `_versions/` directory also holds temporary files of several writers
(`…manifest#1`, `.tmp…`), which belong to no version.
"""

import enum
import re

from lance_core.format.ids import Version

VERSIONS = "_versions"
TRANSACTIONS = "_transactions"
DATA = "data"
DELETIONS = "_deletions"
INDICES = "_indices"
PROJECT_DIRECTORY = "_lance_assets"
"""The only directory that this project adds to a table. Readers and cleanups of Lance ignore unknown directories."""
DIRECTORIES = (TRANSACTIONS, DATA, DELETIONS, INDICES, PROJECT_DIRECTORY)
"""The directories in which a table keeps its files, except for the one with its versions."""

_U64_MAX = 2**64 - 1
_DETACHED_BIT = 1 << 63
_V2 = re.compile(r"(\d{20})\.manifest")
_V1 = re.compile(r"(0|[1-9]\d{0,18})\.manifest")
_DETACHED = re.compile(r"d([1-9]\d{18,19})\.manifest")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*(/[A-Za-z0-9_\-][A-Za-z0-9_.\-]*)*")


class NamingScheme(enum.Enum):
    V1 = "V1"
    """`{version}.manifest`"""
    V2 = "V2"
    """`{2**64 - 1 - version, 20 digits}.manifest`: a sorted listing begins with the newest version."""


def manifest_path(version: Version, scheme: NamingScheme = NamingScheme.V2) -> str:
    """Return the path of a version's manifest.

    >>> manifest_path(Version(1))
    '_versions/18446744073709551614.manifest'
    """
    if is_detached(version):
        return f"{VERSIONS}/d{version}.manifest"
    name = f"{_U64_MAX - version:020d}" if scheme is NamingScheme.V2 else str(version)
    return f"{VERSIONS}/{name}.manifest"


def is_detached(version: Version) -> bool:
    """Return whether this is the number of a detached version. A detached version is committed without reading the
    branch and is never the newest version."""
    return version >= _DETACHED_BIT


def detached_version(number: int) -> Version:
    """Return the detached version with this number: any 63 bits that no other detached version uses."""
    return Version(number | _DETACHED_BIT)


def parse_manifest_name(name: str) -> tuple[Version, NamingScheme] | None:
    """Return the version and naming scheme of a file name in `_versions/`, or `None` if it names no numbered
    version."""
    if matched := _V2.fullmatch(name):
        version = _U64_MAX - int(matched[1])
        return (Version(version), NamingScheme.V2) if 0 < version < _DETACHED_BIT else None
    if matched := _V1.fullmatch(name):
        version = int(matched[1])
        return (Version(version), NamingScheme.V1) if 0 < version < _DETACHED_BIT else None
    return None


def parse_detached_name(name: str) -> Version | None:
    """Return the detached version of a file name in `_versions/`, or `None` if it is not one."""
    matched = _DETACHED.fullmatch(name)
    version = Version(int(matched[1])) if matched else None
    return version if version is not None and _DETACHED_BIT <= version <= _U64_MAX else None


def transaction_name(read_version: Version, uuid: str) -> str:
    return f"{read_version}-{uuid}.txn"


def data_file_name(uuid: bytes) -> str:
    """Return a data file name: 24 binary digits and 26 hexadecimal digits of a uuid. The leading digits spread keys
    over the shards of an object store."""
    head = "".join(f"{byte:08b}" for byte in uuid[:3])
    return f"{head}{uuid[3:].hex()}.lance"


def blob_file_name(number: int) -> str:
    """Return the name of a blob file, which lies in a directory named after its data file: the bits of the file's
    number, the lowest bit first."""
    return f"{number:032b}"[::-1] + ".blob"


def qualify_path(base_id: int | None, path: str) -> str:
    """Return a path that names its base: another directory with files of the table (`base_path.py`).

    No stored name can spell such a path.

    >>> qualify_path(None, "data/x.lance"), qualify_path(0, "data/x.lance")
    ('data/x.lance', '@0/data/x.lance')
    """
    return path if base_id is None else f"@{base_id}/{path}"


def split_qualified_path(path: str) -> tuple[int | None, str]:
    """Return the base id and the path that `qualify_path` combined."""
    if not path.startswith("@"):
        return None, path
    number, _, inner = path[1:].partition("/")
    return int(number), inner


def is_confined(path: str) -> bool:
    """Return whether a stored name stays below its directory: no `..`, no leading `/`, nothing encoded or exotic."""
    return bool(_PLAIN_NAME.fullmatch(path))
