"""The examples of README.md and docs/: each Python block runs as a file of its own, in a process of its own and in an
empty folder.

The console blocks of docs/cli.md are run on a table that `TABLES` creates, and compared with the output shown there.
"""

import os
import re
from pathlib import Path

import pytest

from tests.documentation import CHECKS, PAGES, README_PAGE, ROOT, complete_block, python_blocks
from tests.forked_programs import ForkedPrograms

README = PAGES[README_PAGE]
LINES_MAX = 200

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


def blocks_of_this_run() -> list[tuple[str, str]]:
    """Return the blocks of this run: definitions on other pages than README start Spark, so `make dagster-proofs` runs
    them."""
    is_slice = os.environ.get("PROOFS") != "all"
    return [
        each for each in python_blocks() if not (is_slice and each[0] != README_PAGE and "import dagster" in each[1])
    ]


@pytest.mark.parametrize(("page", "block"), blocks_of_this_run(), ids=lambda value: value if value in PAGES else "")
def test_each_block_runs_alone(page: str, block: str, tmp_path: Path, programs: ForkedPrograms) -> None:
    programs.run_text(complete_block(block), tmp_path)


def test_every_block_of_definitions_is_materialized() -> None:
    blocks = [block for _page, block in python_blocks()]
    assert all(sum(marker in block for block in blocks) == 1 for marker in CHECKS)
    assert len([block for block in blocks if "import dagster" in block]) == len(CHECKS)


def test_the_yaml_is_a_component(tmp_path: Path, programs: ForkedPrograms) -> None:
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
    keys = programs.run_text(program, tmp_path)
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


def test_the_command_line_prints_what_the_page_shows(tmp_path: Path, programs: ForkedPrograms) -> None:
    programs.run_text(TABLES, tmp_path)
    commands = console_commands("docs/cli.md")
    assert {command.split()[1] for command, _ in commands} >= {"history", "diff"}
    for command, output in commands:
        if not output:
            continue
        done = programs.run("lance_assets", *command.split()[1:], directory=tmp_path)
        assert done.returncode == 0, done.stderr
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
