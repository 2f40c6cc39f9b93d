"""File events: the system calls of a recorded workload, reduced to their effects on files below one directory.

A recording is a list of events in the order in which the calls ended. Paths are relative to the directory, whose own
path is the empty text. `save_events` and `load_events` write and read them as compressed JSON.
"""

import base64
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileEvent:
    kind: str
    """`create` a file, `make` a directory, `write`, `truncate`, `sync`, `sync directory`, `sync all`, `link`, `rename`,
    `remove` a file or an empty directory, or `report` of the workload."""
    path: str = ""
    target: str = ""
    """The new name of a link or a rename."""
    file: int = 0
    """Number of the file that is created, written, truncated or synced; a name may belong to several files in turn."""
    offset: int = 0
    """Start of the written range, or the new size of a truncated file."""
    data: bytes = b""
    """The written bytes, or the text of a report."""
    since: int = -1
    """Number of events that had ended when a sync began, which are all that it covers."""
    has_failed: bool = False
    """`True` for a sync that returned an error."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}{f' -> {self.target}' if self.target else ''}"


def save_events(path: Path, events: Iterable[FileEvent]) -> None:
    lines = [{**asdict(event), "data": base64.b64encode(event.data).decode()} for event in events]
    path.write_bytes(lzma.compress(json.dumps(lines).encode(), preset=9))


def load_events(path: Path) -> Sequence[FileEvent]:
    events = [FileEvent(**fields) for fields in json.loads(lzma.decompress(path.read_bytes()))]
    return [replace(event, data=base64.b64decode(event.data)) for event in events]
