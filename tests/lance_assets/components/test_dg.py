"""Command line `dg` with our components: what it lists, scaffolds and checks, and its output."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TYPE = "lance_assets.components.LanceTableComponent"


@pytest.fixture(scope="module")
def shop() -> Iterator[Path]:
    """Copy of the example project on the disk: `dg check yaml` finds no mistake in a project below /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        project = Path(directory) / "shop"
        shutil.copytree(ROOT / "examples/yaml_only", project, ignore=shutil.ignore_patterns(".*"))
        yield project


def dg(shop: Path, *words: str) -> tuple[int, str]:
    home = shop.parent / "home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    entry_points(shop.parent / "site")
    paths = [str(shop), str(shop.parent / "site"), str(ROOT)]
    environment = {
        **os.environ,
        "COLUMNS": "200",
        "DAGSTER_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dagster_dg_cli.cli.entrypoint", *words],
        cwd=shop, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def entry_points(site: Path) -> None:
    """Write the entry points of `pyproject.toml`, as an installed package has them."""
    entry_point_groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = site / "declared_here-1.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: declared-here\nVersion: 1\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in entry_point_groups.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def test_components_are_listed(shop: Path) -> None:
    code, output = dg(shop, "list", "components", "--json")
    assert code == 0, output
    assert f'"{TYPE}"' in output
    assert '"lance_assets.components.SparkSessionComponent"' in output


def test_scaffolded_table_is_checked_and_loaded(shop: Path) -> None:
    code, output = dg(shop, "scaffold", "defs", TYPE, "authors", "--uri", "/lake/authors.lance", "--files", "in/*.csv")
    assert code == 0, output
    written = (shop / "bookshop/defs/authors/defs.yaml").read_text()
    assert f"type: {TYPE}\n" in written
    assert 'uri: "/lake/authors.lance"' in written
    assert 'files: "in/*.csv"' in written
    code, output = dg(shop, "check", "yaml")
    assert (code, "All component YAML validated successfully." in output) == (0, True), output
    code, output = dg(shop, "list", "defs", "--json")  # this command loads the definitions
    assert code == 0, output
    for key in ("authors", "authors_ingest", "authors_compact", "shop/books_sale", "shop/reviews_forget"):
        assert f'"{key}"' in output


def test_mistakes_are_found_by_both_checks(shop: Path) -> None:
    file = shop / "bookshop/defs/books/defs.yaml"
    right = file.read_text()
    wrong = right.replace("predicate: ", "predicat: ")
    line = 1 + wrong[: wrong.index("predicat: ")].count("\n")
    file.write_text(wrong)
    try:
        code, output = dg(shop, "check", "yaml")
        assert code == 1
        assert f"{file}:{line} - " in output
        assert "Additional properties are not allowed ('predicat' was unexpected)" in output
        code, output = dg(shop, "check", "defs", "--no-check-yaml")
        assert code == 1
        assert (
            f"{file}:{line}: writes[2].predicat: the op delete has no 'predicat' (did you mean 'predicate'?)" in output
        )
    finally:
        file.write_text(right)
