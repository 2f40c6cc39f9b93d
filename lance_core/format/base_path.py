"""Other places where a version's files may lie, numbered in its manifest: what a clone or a branch shares with
its source.

A file without a base is the table's own. One with a base is named `@{id}/...` inside this package, a path that no
stored name can spell; `datafiles/bases.py` knows where it leads. Whether a place may be opened at all is
`location.py`'s question. Never here: opening anything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format._pb import table_pb2


@dataclass(frozen=True, slots=True)
class BasePath:
    path: str
    """Absolute, or a URI, as it is stored; some writers store what they were given, relative paths too."""
    id: int = 0
    """In an operation that adds it, zero says: not yet given out. In a manifest it is an id like any other."""
    name: str | None = None
    is_dataset_root: bool = False
    """A table, with `data/` and the rest below it. Otherwise files lie right in the path."""

    @property
    def message(self) -> table_pb2.BasePath:
        message = table_pb2.BasePath(id=self.id, is_dataset_root=self.is_dataset_root, path=self.path)
        if self.name is not None:
            message.name = self.name
        return message


def decode_bases(messages: Iterable[table_pb2.BasePath]) -> tuple[BasePath, ...]:
    """In the order of their ids: a manifest holds them in any."""
    return tuple(sorted(map(decode, messages), key=lambda base: base.id))


def by_id(bases: Iterable[BasePath], *, path: str) -> dict[int, BasePath]:
    found: dict[int, BasePath] = {}
    for base in bases:
        if base.id in found:
            raise Corrupt(f"numbers two base paths {base.id}", path=path, field="base_paths")
        found[base.id] = base
    return found


def smallest_free_id(bases: Iterable[BasePath], *, first: int) -> int:
    """The smallest one that is unused. A clone begins at 0, added paths at 1."""
    taken = {base.id for base in bases}
    return next(number for number in range(first, first + len(taken) + 1) if number not in taken)


def add_bases(known: Sequence[BasePath], new: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """Those that are there and new ones, which get an id where they bring none."""
    bases = list(known)
    for base in new:
        for other in bases:
            if base.path == other.path or (base.name is not None and base.name == other.name):
                raise InvalidInput(
                    f"there is a base path {other.id} ({other.name or 'unnamed'}) at {other.path} already; "
                    f"{base.path} ({base.name or 'unnamed'}) needs another name and path"
                )
            if base.id and base.id == other.id:
                raise InvalidInput(f"the id {base.id} is {other.path}'s already; leave it at 0 to get a free one")
        bases.append(base if base.id else replace(base, id=smallest_free_id(bases, first=1)))
    return tuple(bases)


def qualify_path(base_id: int | None, path: str) -> str:
    """
    >>> located(None, "data/x.lance"), located(0, "data/x.lance")
    ('data/x.lance', '@0/data/x.lance')
    """
    return path if base_id is None else f"@{base_id}/{path}"


def split_qualified_path(path: str) -> tuple[int | None, str]:
    """What `qualify_path` put together."""
    if not path.startswith("@"):
        return None, path
    number, _, inner = path[1:].partition("/")
    return int(number), inner


def decode(message: table_pb2.BasePath) -> BasePath:
    name = message.name if message.HasField("name") else None
    return BasePath(message.path, message.id, name, message.is_dataset_root)
