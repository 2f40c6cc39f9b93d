"""Documentation blocks: the Python blocks of README.md and docs/, completed so that each runs as a program of its own.

A block of Dagster definitions is followed by the materialization of its assets and by what holds afterwards.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README_PAGE = "README.md"
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / README_PAGE, *ROOT.glob("docs/*.md")]}

MATERIALIZE = """
instance = dg.DagsterInstance.local_temp("home")
for key, partition in {runs!r}:
    resources = dict(defs.resources or {{}})
    assert dg.materialize(
        [defs.get_assets_def(key)], instance=instance, resources=resources, partition_key=partition
    ).success
"""
CHECKS = {
    "from lance_assets import ColumnFresh, Maintenance": (
        [
            ("orders_append", "2026-01-02"),
            ("orders_week", None),
            ("orders_append", "2026-01-07"),
            ("orders_week", None),
        ],
        """
from lance_core import Table
assert instance.get_dynamic_partitions("lance/orders") == [f"v{version:010}" for version in range(1, 6)]
table = Table.open("orders_by_day.lance")
assert [table.at(version).freshness("week").stale for version in (3, 4, 5)] == [0, 1000, 0]
assert [table.count_rows(f"week = {week}") for week in (1, 2)] == [1000, 1000]
""",
    ),
    "from lance_assets import LanceIOManager": (
        [("totals", "2026-01-01"), ("totals", "2026-01-02"), ("totals", "2026-01-01")],
        """
table = LanceResource(root="lake").open("totals.lance")
assert (table.version, table.count_rows()) == (3, 2)
""",
    ),
    "from lance_assets import LanceResource, RemoteWrite": (
        [],
        'assert defs.get_assets_def("events_append").required_resource_keys == {"pipes", "io_manager"}\n',
    ),
    "from lance_assets import IndexCoverage": (
        [("people_append", None)],
        'from lance_core import Table\nassert Table.open("people.lance").count_rows() == 10\n',
    ),
    "from lance_assets import ColumnFresh, SparkComputedColumn, SparkSessionResource\n": (
        [("pages_append", None), ("pages_words", None), ("pages_is_long", None)],
        """
from lance_core import Table
assert Table.open("pages.lance").count_rows("words = 3 and is_long") == 1000
""",
    ),
    "import SparkSessionResource, lance_table, lance_view, lance_write": (
        [("pages_append", None), ("recent_fr_refresh", None), ("pages_append", None), ("recent_fr_refresh", None)],
        """
from lance_core import Table
view = Table.open("recent_fr.lance")
assert (view.version, view.count_rows()) == (2, 500)
""",
    ),
}
"""Blocks of Dagster definitions: the assets that the test materializes, and what holds afterwards."""


def python_blocks(pages: Iterable[str] = PAGES) -> list[tuple[str, str]]:
    """Return the Python blocks of pages, each with its page."""
    return [(page, block) for page in pages for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)]


def complete_block(block: str) -> str:
    """Return a block as a program, which materializes the assets that the block defines."""
    for marker, (runs, assertion) in CHECKS.items():
        if marker in block:
            return block + MATERIALIZE.format(runs=runs) + assertion
    return block


def complete_blocks(page: str) -> list[str]:
    """Return the programs of a page."""
    return [complete_block(block) for _, block in python_blocks([page])]


def run_python(program: str, folder: Path, interpreter: str | Path = sys.executable) -> str:
    """Run a program in a folder and return its output."""
    script = folder / "example.py"
    script.write_text(program)
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run([interpreter, script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
