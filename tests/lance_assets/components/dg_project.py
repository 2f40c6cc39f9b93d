"""Project of `dg`: a copy of an example, and a runner of the command line in it."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TYPE = "lance_assets.components.LanceTableComponent"


@contextmanager
def copied_shop() -> Iterator[Path]:
    """Copy the example project to the disk, since `dg check yaml` reports no mistakes of a project below /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        project = Path(directory) / "shop"
        shutil.copytree(ROOT / "examples/yaml_only", project, ignore=shutil.ignore_patterns(".*"))
        yield project


def run_dg(shop: Path, *words: str) -> tuple[int, str]:
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
    """Write the entry points of `pyproject.toml` in the form of an installed package."""
    entry_point_groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = site / "declared_here-1.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: declared-here\nVersion: 1\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in entry_point_groups.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
