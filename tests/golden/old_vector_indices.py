"""Tables with vector indices of old releases of pylance: `python -m tests.golden.old_vector_indices` rewrites
`vector_indices.tar.xz`.

The recipes run inside the environment of each release, so the module imports only that release, pyarrow and numpy when
it is started with a directory. Their names are `<release>/<type>-<metric>`, with `-legacy` for the layout in one file.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ARCHIVE = Path(__file__).parent / "vector_indices.tar.xz"
ROWS, SIZE = 300, 8
RECIPES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "0.20.0": (("IVF_PQ", "l2", True), ("IVF_HNSW_PQ", "cosine", False), ("IVF_HNSW_SQ", "l2", False)),
    "0.27.2": (("IVF_PQ", "dot", False), ("IVF_FLAT", "l2", False)),
    "4.0.0": (("IVF_HNSW_SQ", "cosine", False), ("IVF_RQ", "l2", False)),
    "8.0.0": (("IVF_HNSW_SQ", "dot", False), ("IVF_HNSW_FLAT", "l2", False), ("IVF_RQ", "cosine", False)),
}


def vectors() -> np.ndarray:
    """Return the vectors of all tables; the number of a row is its `id`."""
    return np.random.default_rng(6).normal(size=(ROWS, SIZE)).astype(np.float32)


def write_tables(release: str, root: Path) -> None:
    """Write the tables of the release that is imported here."""
    import lance

    points = pa.FixedSizeListArray.from_arrays(pa.array(vectors().ravel()), SIZE)
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": points})
    for kind, metric, is_legacy in RECIPES[release]:
        options: dict[str, Any] = {"index_file_version": "legacy"} if is_legacy else {}
        if kind.endswith("_PQ"):
            options["num_sub_vectors"] = 4
        if "HNSW" in kind:
            options |= {"m": 4, "ef_construction": 20}
        place = str(root / release / f"{kind}-{metric}{'-legacy' if is_legacy else ''}")
        dataset = lance.write_dataset(rows, place)
        dataset.create_index("v", kind, num_partitions=2, metric=metric, **options)


def main() -> None:
    from tests.pylance_releases import ROOT, install_release

    with tempfile.TemporaryDirectory() as directory:
        for release in RECIPES:
            program = [str(install_release(release)), "-m", "tests.golden.old_vector_indices", release, directory]
            subprocess.run(program, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for file in sorted(path for path in Path(directory).rglob("*") if path.is_file()):
                entry = tarfile.TarInfo(file.relative_to(directory).as_posix())
                entry.size = file.stat().st_size
                with file.open("rb") as content:
                    archive.addfile(entry, content)
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_tables(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
