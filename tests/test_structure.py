"""The house keeps its own rules, from the first day on.

Every rule of `tests/structure.py` and every import contract of `pyproject.toml` is tried twice: on the real tree,
where it must find nothing, and on a small bad tree, where it must find exactly what is wrong. What a fresh
interpreter loads is tried in one.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.structure import (
    RULES,
    Module,
    Modules,
    Rule,
    core_imports_at_the_top,
    core_runs_no_data,
    edge_uses_the_front_door,
    errors_are_named,
    every_module_introduces_itself,
    every_module_is_imported,
    generated_code_stays_in_format,
    lock_names_no_host,
    objects_are_measured_first,
    pure_rooms_touch_nothing,
    pylance_is_a_codec,
    silence_is_precise,
    spark_side_knows_no_dagster,
    text_is_portable,
)

ROOT = Path(__file__).parent.parent
FOLDERS = ("lance_core", "lance_assets", "benchmarks", "examples", "tools", "tests")
IMPORT_TIMES_MAX = 3.6
TOO_HEAVY_FOR_THE_FRONT_DOOR = ("dagster", "lance", "pandas", "pyspark")

# rule, where, a line that breaks it
BAD: tuple[tuple[Rule, str, str], ...] = (
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "import os"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "from pathlib import Path"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "data = open('manifest')"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "import socket"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "import fsspec"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "from numpy import random"),
    (pure_rooms_touch_nothing, "lance_core/format/x.py", "bits = np.random.default_rng()"),
    (pure_rooms_touch_nothing, "lance_core/transactions/x.py", "import time"),
    (pure_rooms_touch_nothing, "lance_core/transactions/x.py", "import random"),
    (pure_rooms_touch_nothing, "lance_core/transactions/x.py", "when = datetime.now(UTC)"),
    (pure_rooms_touch_nothing, "lance_core/transactions/x.py", "from uuid import uuid4"),
    (pure_rooms_touch_nothing, "lance_core/transactions/x.py", "ours = uuid.uuid4()"),
    (every_module_is_imported, "lance_core/scan/lonely.py", "plan = 1"),
    (generated_code_stays_in_format, "lance_core/commit/loop.py", "from lance_core.format._pb import table_pb2"),
    (generated_code_stays_in_format, "benchmarks/x.py", "import lance_core.format._pb.table_pb2"),
    (core_runs_no_data, "lance_core/tasks/x.py", "import pickle"),
    (core_runs_no_data, "lance_core/tasks/x.py", "value = eval(text)"),
    (core_runs_no_data, "lance_core/tasks/x.py", "exec(text)"),
    (core_runs_no_data, "lance_core/datafiles/x.py", "import ctypes"),
    (core_runs_no_data, "lance_core/datafiles/x.py", "from yaml import load"),
    (core_runs_no_data, "lance_core/datafiles/x.py", "found = np.load(file, allow_pickle=True)"),
    (core_runs_no_data, "lance_core/datafiles/x.py", "found = pd.read_pickle(file)"),
    (objects_are_measured_first, "lance_core/x/y.py", "data = store.read(path)"),
    (objects_are_measured_first, "lance_core/x/y.py", "data = location.store.read(path)"),
    (errors_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (errors_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept (ValueError, BaseException):\n    pass"),
    (errors_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept:\n    pass"),
    (pylance_is_a_codec, "lance_core/datafiles/x.py", "from lance.file import LanceFileReader"),
    (pylance_is_a_codec, "lance_core/datafiles/x.py", "lance = importlib.import_module('lance')"),
    (pylance_is_a_codec, "lance_assets/spark/x.py", "import lance"),
    (pylance_is_a_codec, "lance_core/datafiles/lance_codec.py", "from lance.dataset import LanceDataset"),
    (pylance_is_a_codec, "lance_core/datafiles/lance_codec.py", "from lance import LanceDataset"),
    (core_imports_at_the_top, "lance_core/datafiles/lance_codec.py", "from lance.file import LanceFileReader"),
    (core_imports_at_the_top, "lance_core/commit/loop.py", "def f() -> None:\n    from lance_core import table"),
    (edge_uses_the_front_door, "lance_assets/x.py", "from lance_core.commit.loop import commit"),
    (edge_uses_the_front_door, "lance_assets/x.py", "from lance_core.commit import loop"),
    (spark_side_knows_no_dagster, "lance_assets/spark/x.py", "import dagster as dg"),
    (spark_side_knows_no_dagster, "lance_assets/spark/x.py", "from ..failures.error_translation import failed"),
    (silence_is_precise, "tools/x.py", "a = b  # type: ignore"),
    (silence_is_precise, "tools/x.py", "a = b  # noqa"),
)

# What the same rules let pass.
GOOD: tuple[tuple[Rule, str, str], ...] = (
    (
        pure_rooms_touch_nothing,
        "lance_core/format/x.py",
        "from datetime import datetime\nfrom uuid import UUID",
    ),
    (pure_rooms_touch_nothing, "lance_core/storage/x.py", "import os\nimport time\nimport uuid"),
    (every_module_is_imported, "lance_core/commit/loop.py", "rounds = 3"),
    (generated_code_stays_in_format, "lance_core/format/x.py", "from lance_core.format._pb import table_pb2"),
    (
        objects_are_measured_first,
        "lance_core/x/y.py",
        "store.read(path, 0, 5)\nread_whole(store, path, LIMIT)\nf.read(5)",
    ),
    (objects_are_measured_first, "lance_core/storage/y.py", "data = store.read(path)"),
    (errors_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept BaseException:\n    raise"),
    (core_runs_no_data, "lance_core/tasks/x.py", "import json\nimport re\nshape = re.compile('x')"),
    (
        pylance_is_a_codec,
        "lance_core/datafiles/lance_codec.py",
        "def f() -> None:\n    from lance.file import LanceFileReader",
    ),
    (pylance_is_a_codec, "tests/x.py", "import lance"),
    (core_imports_at_the_top, "lance_core/datafiles/lance_codec.py", "def f() -> None:\n    import lance.file"),
    (core_imports_at_the_top, "lance_core/datafiles/lance_codec.py", "if TYPE_CHECKING:\n    import lance.file"),
    (core_imports_at_the_top, "lance_assets/x.py", "def f() -> None:\n    import dagster"),
    (
        edge_uses_the_front_door,
        "lance_assets/x.py",
        "from lance_core import Table, operations\nimport lance_core.tasks",
    ),
    (spark_side_knows_no_dagster, "lance_assets/x.py", "import dagster as dg"),
    (
        spark_side_knows_no_dagster,
        "lance_assets/spark/x.py",
        "import pyspark\nfrom lance_assets.spark import types",
    ),
    (silence_is_precise, "tools/x.py", "a = b  # type: ignore[arg-type]  # noqa: B006"),
)

# What stands around each of those lines: two open front doors and a room or two.
AROUND = {
    "lance_core/__init__.py": "from lance_core.commit import loop",
    "lance_core/commit/loop.py": "x = 1",
    "lance_assets/__init__.py": "_EXPORTS = {'failed': '.failures.error_translation'}",
    "lance_assets/failures/error_translation.py": "z = 1",
}

SLASH = "/"  # a place in these cases is not a place in this file
PORTABLE: tuple[tuple[Callable[[Mapping[str, str]], list[str]], str, str, bool], ...] = (
    (text_is_portable, "README.md", f"see {SLASH}work/main/README.md", True),
    (text_is_portable, "README.md", f"cd {SLASH}home/ann/lance-assets", True),
    (text_is_portable, "README.md", f"run {SLASH}tmp/venv/bin/python", True),
    (
        text_is_portable,
        "README.md",
        "Table.open('/tmp/orders.lance'), s3://lake/work/orders, docs/home/x/",
        False,
    ),
    (lock_names_no_host, "requirements/dev.lock", "--index-url https://example.org/simple", True),
    (lock_names_no_host, "requirements/dev.lock", "numpy==2.4.6 \\\n    --hash=sha256:00", False),
    (lock_names_no_host, "README.md", "https://example.org", False),
)

# contract, where, a line that breaks it
STAIRS: tuple[tuple[str, str, str], ...] = (
    ("layers of lance_core", "lance_core/format/x.py", "import lance_core.table.table"),
    ("layers of lance_core", "lance_core/storage/x.py", "import lance_core.transactions"),
    ("pure packages of lance_core do not import I/O", "lance_core/transactions/x.py", "import lance_core.storage"),
    ("layers of lance_core", "lance_core/attic.py", "x = 'not listed'"),
    ("layers of lance_assets", "lance_assets/spark/x.py", "import lance_assets.ledger"),
    ("layers of lance_assets", "lance_assets/attic.py", "x = 'not listed'"),
    ("lance_core does not import lance_assets", "lance_core/table/table.py", "import lance_assets"),
    ("lance_core does not import Spark or Dagster", "lance_core/table/table.py", "import pyspark"),
    ("only lance_codec imports pylance", "lance_assets/spark/x.py", "import lance.dataset"),
)
ROOMS = (
    "lance_core",
    "lance_core/coordination",
    "lance_core/datafiles",
    "lance_core/expressions",
    "lance_core/format",
    "lance_core/storage",
    "lance_core/table",
    "lance_core/transactions",
    "lance_assets",
    "lance_assets/ledger",
    "lance_assets/spark",
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(rule: Rule) -> None:
    assert rule(project()) == []


@pytest.mark.parametrize("rule", [text_is_portable, lock_names_no_host], ids=lambda rule: rule.__name__)
def test_the_text_keeps_its_rules(rule: Callable[[Mapping[str, str]], list[str]]) -> None:
    assert rule(project_texts()) == []


@pytest.mark.parametrize(("rule", "path", "line"), BAD)
def test_a_broken_rule_is_found(rule: Rule, path: str, line: str) -> None:
    findings = rule(tree(AROUND | {path: line}))
    assert len(findings) == 1
    assert re.match(rf"{re.escape(path)}:\d+: ", findings[0])


@pytest.mark.parametrize(("rule", "path", "line"), GOOD)
def test_a_rule_finds_no_more_than_it_should(rule: Rule, path: str, line: str) -> None:
    assert rule(tree(AROUND | {path: line})) == []


def test_a_module_without_docstring_is_found() -> None:
    assert every_module_introduces_itself((Module("tools.x", "tools/x.py", "import os"),)) != []


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _, _ in BAD} | {every_module_introduces_itself} == set(RULES)


@pytest.mark.parametrize(("rule", "path", "text", "found"), PORTABLE)
def test_text_rules_find_what_they_should(
    rule: Callable[[Mapping[str, str]], list[str]], path: str, text: str, found: bool
) -> None:
    assert bool(rule({path: text})) is found


def test_the_stairs_go_down() -> None:
    assert broken_contracts(ROOT) == []


@pytest.mark.parametrize(("contract", "path", "line"), STAIRS)
def test_a_stair_going_up_is_found(contract: str, path: str, line: str, tmp_path: Path) -> None:
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    (tmp_path / "lance_core/table/table.py").touch()
    (tmp_path / "lance_core/runtime.py").touch()
    (tmp_path / path).write_text(line)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    assert broken_contracts(tmp_path) == [contract]


def test_every_contract_has_a_case() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {contract["name"] for contract in config["tool"]["importlinter"]["contracts"]} == {
        name for name, _, _ in STAIRS
    }


def test_importing_the_core_is_quick_and_light() -> None:
    """In times of what the libraries take that it cannot do without: a busy machine is slow for both."""
    program = (
        "import json, sys, time; start = time.thread_time(); "
        "import fsspec, google.protobuf.message, numpy, pyarrow, pyarrow.compute; libraries = time.thread_time(); "
        "import lance_core; done = time.thread_time(); "
        "print(json.dumps([(done - start) / (libraries - start), list(sys.modules)]))"
    )
    found = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        times, modules = json.loads(done.stdout)
        assert set(TOO_HEAVY_FOR_THE_FRONT_DOOR) & set(modules) == set()
        found.append(times)
    assert min(found) < IMPORT_TIMES_MAX


def tree(files: Mapping[str, str]) -> Modules:
    """Modules out of path and text."""
    return tuple(
        Module(
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."),
            path,
            f'"""Doc."""\n{text}\n',
        )
        for path, text in files.items()
    )


def project() -> Modules:
    """The Python files of the repository."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(
        Module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
            path.relative_to(ROOT).as_posix(),
            path.read_text(encoding="utf-8"),
        )
        for path in paths
    )


def project_texts() -> dict[str, str]:
    """The text files that are, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    contents = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}
    return {path: data.decode() for path, data in contents.items() if b"\0" not in data and is_utf8(data)}


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def broken_contracts(root: Path) -> list[str]:
    """The names of the import contracts that the tree under root breaks."""
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"],
        cwd=root, capture_output=True, text=True, env={"COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip
    broken = re.findall(r"^(.+?) BROKEN", done.stdout, re.MULTILINE)
    assert (done.returncode == 0) is (broken == []), done.stdout + done.stderr
    return [name.strip() for name in broken]
