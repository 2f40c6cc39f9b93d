"""Writes to a disk that is full: appends rows, builds an index and appends blobs while no file may grow beyond a size
just below that of a file that the same operation has written before.

    python -m tests.lance_core.write_to_full_disk /tmp/place

Prints the error of each operation and the versions of its table.
"""

import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from lance_core import LanceError, Table

MISSING_BYTES = 10
NUMBERS = pa.table({"id": np.random.default_rng(0).integers(0, 1 << 60, 5_000)})
BLOBS = pa.table(
    {"film": pa.array([bytes(range(256)) * 4_000], pa.large_binary())},
    schema=pa.schema([pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})]),
)
Write = Callable[[Table], object]


def write_beyond_limit(place: Path, name: str, data: pa.Table, suffix: str, write: Write) -> None:
    """Let an operation write once to learn the size of its largest file, and once with less than that."""
    write(Table.create(place / f"{name} before", data))
    size = max(path.stat().st_size for path in place.joinpath(f"{name} before").rglob(f"*{suffix}"))
    table = Table.create(place / name, data)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - MISSING_BYTES, resource.RLIM_INFINITY))
    try:
        write(table)
        outcome = "no error"
    except LanceError as error:
        found = re.search("is incomplete|exceeds blob object size", str(error))
        outcome = f"{type(error).__name__}: {found[0] if found else error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    newest = Table.open(place / name)
    print(f"{name}: {outcome}, {newest.version} version with {newest.to_table().num_rows} rows", flush=True)


def main(place: Path) -> None:
    write_beyond_limit(place, "data", NUMBERS, ".lance", lambda table: table.append(NUMBERS))
    write_beyond_limit(place, "index", NUMBERS, "page_data.lance", lambda table: table.create_index("id", "BTREE"))
    write_beyond_limit(place, "blobs", BLOBS, ".blob", lambda table: table.append(BLOBS))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
