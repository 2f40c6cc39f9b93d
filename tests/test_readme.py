"""The README's examples, run as a newcomer would: in one fresh process, in an empty folder, top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()

_MATERIALIZE = """
import dagster as dg
instance = dg.DagsterInstance.local_temp("home")

def materialized(definitions, key, partition=None):
    given = dict(definitions.resources or {})
    assets = [definitions.get_assets_def(key)]
    assert dg.materialize(assets, instance=instance, resources=given, partition_key=partition).success

materialized(defs, orders.write_key("orders_append"), "2026-01-02")
assert instance.get_dynamic_partitions("lance/orders") == ["v0000000001"]
assert Table.open("orders_by_day.lance").count_rows() == 1000
spark = dg.Definitions(resources=defs.resources)
materialized(dg.Definitions.merge(people.defs, spark), people.write_key("people_append"))
assert Table.open("lake/people.lance").count_rows() == 10
for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
    materialized(kept, "totals", day)
assert (lake.open("totals.lance").version, lake.open("totals.lance").count_rows()) == (3, 2)
"""


def shell_commands() -> list[tuple[str, str]]:
    """Each command of lance-assets, with the output that stands below it."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    found = [each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each]
    return [(command, output) for command, _, output in found if command.startswith("lance-assets ")]


def asked(command: str, folder: Path) -> str:
    arguments = [sys.executable, "-m", "lance_assets", *command.split()[1:]]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True).stdout


def shown(output: str, folder: Path) -> str:
    """Without what is another every time."""
    output = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", output)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", output.replace(str(folder), "/data"))


def test_what_the_readme_asks_of_the_shell_is_tried() -> None:
    assert [command.split()[1] for command, _ in shell_commands()] == ["history", "diff", "lineage"]


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = python_blocks()
    assert len(blocks) == 6
    script = tmp_path / "readme.py"
    script.write_text("\n".join([*blocks, _MATERIALIZE]))
    (tmp_path / "home").mkdir()
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "1 Overwrite 2" in done.stdout
    assert "2 Append 3" in done.stdout
    assert "1 1000000" in done.stdout
    assert "books.lance: sound; 5 versions" in done.stdout
    assert "97" in done.stdout.splitlines()
    for command, output in shell_commands():
        assert shown(asked(command, tmp_path), tmp_path) == shown(output, tmp_path), command


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z-]+)", README))))
def test_the_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no make {target}"


@pytest.mark.parametrize("block", python_blocks())
def test_the_examples_are_short(block: str) -> None:
    assert len([line for line in block.splitlines() if line]) <= 10
