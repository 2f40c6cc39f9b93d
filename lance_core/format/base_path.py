"""Base paths: other directories that hold files of a version, numbered in its manifest. A clone or a branch shares
the files of its source through them.

A file without a base belongs to the table's own directory. The path of a file with a base names its id
(`naming.qualify_path`), and `datafiles/bases.py` resolves it. `versions/location.py` decides whether a base may be
opened. This module opens nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format._pb import table_pb2


@dataclass(frozen=True, slots=True)
class BasePath:
    path: str
    """An absolute path or a URI, as stored. Some writers store relative paths as they received them."""
    id: int = 0
    """In an operation that adds the base, 0 means that no id is assigned yet. In a manifest, 0 is an id like any
    other."""
    name: str | None = None
    is_dataset_root: bool = False
    """True if the path is a table with `data/` and the other directories; false if files lie directly in the path."""

    @property
    def message(self) -> table_pb2.BasePath:
        message = table_pb2.BasePath(id=self.id, is_dataset_root=self.is_dataset_root, path=self.path)
        if self.name is not None:
            message.name = self.name
        return message


def decode_bases(messages: Iterable[table_pb2.BasePath]) -> tuple[BasePath, ...]:
    """Return the bases in the order of their ids; a manifest holds them in any order."""
    return tuple(sorted(map(decode, messages), key=lambda base: base.id))


def by_id(bases: Iterable[BasePath], *, path: str) -> dict[int, BasePath]:
    result: dict[int, BasePath] = {}
    for base in bases:
        if base.id in result:
            raise Corrupt(f"has two base paths with the id {base.id}", path=path, field="base_paths")
        result[base.id] = base
    return result


def smallest_free_id(bases: Iterable[BasePath], *, first: int) -> int:
    """Return the smallest unused id. Ids of clones start at 0, ids of added bases at 1."""
    taken = {base.id for base in bases}
    return next(number for number in range(first, first + len(taken) + 1) if number not in taken)


def add_bases(known: Sequence[BasePath], new: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """Return the known bases and the new ones. A new base without an id gets a free one."""
    bases = list(known)
    for base in new:
        for other in bases:
            if base.path == other.path or (base.name is not None and base.name == other.name):
                raise InvalidInput(
                    f"base path {other.id} ({other.name or 'unnamed'}) at {other.path} already exists; "
                    f"{base.path} ({base.name or 'unnamed'}) needs another name and path"
                )
            if base.id and base.id == other.id:
                raise InvalidInput(
                    f"the id {base.id} is already used by base path {other.path}; pass 0 to get a free id"
                )
        bases.append(base if base.id else replace(base, id=smallest_free_id(bases, first=1)))
    return tuple(bases)


def decode(message: table_pb2.BasePath) -> BasePath:
    name = message.name if message.HasField("name") else None
    return BasePath(message.path, message.id, name, message.is_dataset_root)
