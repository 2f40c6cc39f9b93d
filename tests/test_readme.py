"""The examples of README.md and docs/: each Python block runs as a file of its own, in an empty folder.

The console blocks of docs/cli.md are run on a table that `TABLES` creates, and compared with the output shown there.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
LINES_MAX = 200

MATERIALIZE = """
instance = dg.DagsterInstance.local_temp("home")
for key, partition in {runs!r}:
    resources = dict(defs.resources or {{}})
    assert dg.materialize(
        [defs.get_assets_def(key)], instance=instance, resources=resources, partition_key=partition
    ).success
"""
CHECKS = {
    "from lance_assets import Maintenance": (
        [("orders_append", "2026-01-02")],
        """
from lance_core import Table
assert instance.get_dynamic_partitions("lance/orders") == ["v0000000001"]
assert Table.open("orders_by_day.lance").count_rows() == 1000
""",
    ),
    "from lance_assets import LanceIOManager": (
        [("totals", "2026-01-01"), ("totals", "2026-01-02"), ("totals", "2026-01-01")],
        """
table = LanceResource(root="lake").open("totals.lance")
assert (table.version, table.count_rows()) == (3, 2)
""",
    ),
    "from lance_assets import IndexCoverage": (
        [("people_append", None)],
        'from lance_core import Table\nassert Table.open("people.lance").count_rows() == 10\n',
    ),
}
"""Blocks of Dagster definitions: the assets that the test materializes, and what holds afterwards."""

TABLES = """
import pyarrow as pa
from lance_core import Table
books = Table.create("books.lance", pa.table({"id": [1, 2, 3], "price": [10.0, 20.0, 30.0]}), stable_row_ids=True)
books = books.upsert(pa.table({"id": [3, 4], "price": [33.0, 40.0]}), on="id").table
books = books.update({"price": "price * 1.1"}, where="price < 15").table
books = books.add_columns({"rounded": "cast(round(price) as int)"}).table
books.tags.create("spring")
books.delete("id = 2")
"""


def python_blocks() -> list[tuple[str, str]]:
    return [
        (page, block) for page, text in PAGES.items() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]


def run_python(program: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(program)
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(("page", "block"), python_blocks(), ids=lambda value: value if value in PAGES else "")
def test_each_block_runs_alone(page: str, block: str, tmp_path: Path) -> None:
    for marker, (runs, assertion) in CHECKS.items():
        if marker in block:
            block += MATERIALIZE.format(runs=runs) + assertion
    run_python(block, tmp_path)


def test_every_block_of_definitions_is_materialized() -> None:
    blocks = [block for _page, block in python_blocks()]
    assert all(sum(marker in block for block in blocks) == 1 for marker in CHECKS)
    assert len([block for block in blocks if "import dagster" in block]) == len(CHECKS)


def test_the_yaml_is_a_component(tmp_path: Path) -> None:
    """The block loads as a component of a project, with the assets of its writes."""
    (yaml,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    folder = tmp_path / "shop/defs/orders"
    folder.mkdir(parents=True)
    (folder / "defs.yaml").write_text(yaml)
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "shop"\nversion = "1"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
    )
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import dagster as dg\n"
        "sys.path.insert(0, os.getcwd())\n"
        "os.environ['AWS_SECRET_ACCESS_KEY'] = 'not shown'\n"
        "spark = dg.Definitions(resources={'spark': dg.ResourceDefinition.none_resource()})\n"
        "defs = dg.Definitions.merge(dg.load_from_defs_folder(path_within_project=Path('shop')), spark)\n"
        "print(sorted(key.to_user_string() for key in defs.resolve_all_asset_keys()))\n"
    )
    keys = run_python(program, tmp_path)
    for name in ("orders", "orders_ingest", "orders_withdraw", "orders_index_order_id", "orders_compact"):
        assert f"'{name}'" in keys


def console_commands(page: str) -> list[tuple[str, str]]:
    """The commands of `lance-assets` on a page, each with the output shown below it."""
    blocks = re.findall(r"```console\n(.*?)```", PAGES[page], re.DOTALL)
    commands = [
        each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each
    ]
    return [(command, output) for command, _, output in commands if command.startswith("lance-assets ")]


def without_times(output: str, folder: Path) -> str:
    """Return the output without the parts that differ from run to run."""
    output = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", output)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", output.replace(str(folder), "/data"))


def test_the_command_line_prints_what_the_page_shows(tmp_path: Path) -> None:
    run_python(TABLES, tmp_path)
    commands = console_commands("docs/cli.md")
    assert {command.split()[1] for command, _ in commands} >= {"history", "diff"}
    for command, output in commands:
        if not output:
            continue
        arguments = [sys.executable, "-m", "lance_assets", *command.split()[1:]]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert without_times(done.stdout, tmp_path) == without_times(output, tmp_path), command


@pytest.mark.parametrize("page", PAGES)
def test_the_targets_of_make_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", PAGES[page]))
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX
    first_screen = README.split("## ")[0]
    assert "pip install" in first_screen
    assert "```python" in first_screen
    assert "![" in first_screen
