"""External lineage: row ids and row versions of a fragment that are stored outside the manifest.

`manifest_file.py` detects tables with such fragments, and `datafiles/manifest_completion.py` reads the sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.manifest_file import LINEAGE_IN_FILES


@dataclass(frozen=True, slots=True)
class LineageFile:
    """Location of one sequence of a fragment. The path is relative to the table's root, as stored."""

    field: str
    path: str
    offset: int
    size: int


def lineage_files(fragment: Fragment) -> tuple[LineageFile, ...]:
    """Return the locations of the sequences of a fragment that are stored in files."""
    message = fragment.message
    files = ((name, getattr(message, name)) for name in LINEAGE_IN_FILES if message.HasField(name))
    return tuple(LineageFile(name, file.path, file.offset, file.size) for name, file in files)


def inline_sequences(fragment: Fragment, sequences: Mapping[str, bytes]) -> Fragment:
    """Return the fragment with these sequences inline, by the name of the field that held their location."""
    message = table_pb2.DataFragment()
    message.CopyFrom(fragment.message)
    for name, sequence in sequences.items():
        setattr(message, LINEAGE_IN_FILES[name], sequence)
    return Fragment(message)
