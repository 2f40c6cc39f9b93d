"""Golden table generator: `python -m tests.golden.make [release ...]` writes the tables of the given releases, or of
all.

Each release has a virtual environment of its own (`tests/pylance_releases.py`). In it `recipes.py` writes the tables
and records what that release reads from them. The tables of a release are stored as one archive, with the records in a
JSON file next to it. Names and timestamps in the tables differ in each run, so this program adds releases or recipes
and is not a check.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.pylance_releases import ROOT, install_release

HERE = Path(__file__).parent
TABLES = HERE / "tables"

# The first is the oldest release; the others continue with one of its tables.
RELEASES = (
    "0.5.0",
    "0.8.0",
    "0.10.0",
    "0.10.5",
    "0.12.3",
    "0.15.0",
    "0.20.0",
    "0.30.0",
    "1.0.0",
    "4.0.0",
    "8.0.0",
    "14.0.2",
)
OLDEST = RELEASES[0]


def write_tables(release: str, root: Path, oldest: Path | None) -> None:
    """Run the recipes in the environment of the release, whose output on standard error is discarded."""
    oldest_table = [str(oldest)] if oldest else []
    command = [str(install_release(release)), "-m", "tests.golden.recipes", str(root), *oldest_table]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)


def archive_tables(release: str, root: Path) -> None:
    """Write the records with one line per table, so that a diff shows the changed table, and archive the tables."""
    notes = json.loads((root / "expected.json").read_text())
    tables = notes.pop("tables")
    lines = [f'"{name}": {json.dumps(table, sort_keys=True, ensure_ascii=False)}' for name, table in tables.items()]
    head = json.dumps(notes, sort_keys=True)[1:-1]
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{release}.json").write_text(f'{{{head}, "tables": {{\n' + ",\n".join(lines) + "\n}}\n")
    (root / "expected.json").unlink()
    with tarfile.open(TABLES / f"{release}.tar.xz", "w:xz") as archive:
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            name = tarfile.TarInfo(file.relative_to(root).as_posix())
            name.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(name, content)


def main(releases: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for release in [OLDEST, *(other for other in releases if other != OLDEST)]:
            root = Path(scratch, release)
            root.mkdir()
            write_tables(release, root, None if release == OLDEST else Path(scratch, OLDEST, "deletions"))
            if release in releases:
                archive_tables(release, root)
                print(f"{release}: {(TABLES / f'{release}.tar.xz').stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(RELEASES))
