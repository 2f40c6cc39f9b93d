"""Makes the golden tables: `python tests/golden/make.py [release ...]`, for all releases where none is named.

Each release gets a virtual environment below `.tools/golden/`, made once, with the pyarrow and numpy of its day; in it
`recipes.py` writes the tables and notes what that very release reads from them. The tables of a release are kept as
one archive, the notes beside it. Names and timestamps in the tables are new each time, so this is run to add a release
or a recipe, not as a check.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
TABLES = HERE / "tables"
ENVIRONMENTS = HERE.parent.parent / ".tools" / "golden"

# Release -> the pyarrow and numpy that it runs with. The first is the oldest: the others go on with a table of its.
RELEASES = {
    "0.5.0": ("12.0.1", "1.26.4"),
    "0.8.0": ("12.0.1", "1.26.4"),
    "0.10.0": ("14.0.2", "1.26.4"),
    "0.10.5": ("14.0.2", "1.26.4"),
    "0.12.3": ("14.0.2", "1.26.4"),
    "0.15.0": ("16.1.0", "1.26.4"),
    "0.20.0": ("18.1.0", "1.26.4"),
    "0.30.0": ("20.0.0", "2.2.6"),
    "1.0.0": ("22.0.0", "2.2.6"),
    "4.0.0": ("23.0.1", "2.2.6"),
    "8.0.0": ("23.0.1", "2.2.6"),
    "14.0.2": ("23.0.1", "2.2.6"),
}
OLDEST = next(iter(RELEASES))


def python_of(release: str) -> Path:
    place = ENVIRONMENTS / release
    python = place / "bin" / "python"
    done = place / ".installed"
    if not done.exists():
        print(f"installing pylance {release}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pyarrow, numpy = RELEASES[release]
        packages = [f"pylance=={release}", f"pyarrow=={pyarrow}", f"numpy=={numpy}"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python


def write_tables(release: str, root: Path, oldest: Path | None) -> None:
    """Run the recipes in the release's environment; a release says much on its standard error."""
    handed = [str(oldest)] if oldest else []
    command = [str(python_of(release)), "-m", "tests.golden.recipes", str(root), *handed]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=HERE.parent.parent)


def keep(release: str, root: Path) -> None:
    """A line for each table, so that a change is seen where it is."""
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
                keep(release, root)
                print(f"{release}: {(TABLES / f'{release}.tar.xz').stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(RELEASES))
