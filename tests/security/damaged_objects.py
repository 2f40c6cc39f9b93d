"""Damaged objects: reads files of an object store and of a local directory in a process that they might end.

    python -m tests.security.damaged_objects < '{"uri": ..., "options": {...}, "directory": ..., "paths": [...]}'

It prints one line for each file, with what happened to the object and to the local file.
"""

import json
import sys
from pathlib import Path

import numpy as np

from lance_core import Corrupt, LanceError
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.storage.factory import TableStore, open_store
from lance_core.storage.local import LocalStore


def read_file(store: TableStore, path: str, size: int) -> str:
    """Read a file, and return its rows or the error."""
    try:
        reader = LanceCodec(store).open(path, size=size)
        names = reader.schema.names
        batches = [*reader.read(names, 0, reader.row_count), *reader.take(names, np.array([1, 5], np.int64))]
        for batch in batches:
            batch.validate(full=True)
    except Corrupt as error:
        return f"Corrupt {error.field}"
    except LanceError as error:
        return type(error).__name__
    except ValueError as error:
        return f"invalid {error}"
    return str([batch.to_pylist() for batch in batches])


def main() -> None:
    request = json.load(sys.stdin)
    objects = open_store(request["uri"], storage_options=request["options"])
    local = LocalStore(Path(request["directory"]))
    for path in request["paths"]:
        size = (local.root / path).stat().st_size
        print(json.dumps([path, *(read_file(store, path, size) for store in (objects, local))]), flush=True)


if __name__ == "__main__":
    main()
