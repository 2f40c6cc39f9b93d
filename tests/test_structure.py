"""Structure of the source tree: the rules of `tests/structure.py` and the import contracts of `pyproject.toml`.

Each rule and contract is checked twice: on the real tree, where it must find nothing, and on a small bad tree, where it
must find exactly the defect. A fresh interpreter shows what importing the core loads.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.structure import (
    RULES,
    Module,
    Modules,
    Rule,
    core_executes_no_data,
    core_imports_at_the_top,
    docstrings_open_with_a_term,
    every_module_is_imported,
    exceptions_are_named,
    functions_are_simple,
    generated_code_stays_in_format,
    lance_assets_uses_the_public_api,
    links_resolve,
    lock_names_no_host,
    modules_have_docstrings,
    names_are_unique,
    packages_are_few,
    patches_are_public,
    pure_packages_do_no_io,
    pylance_is_a_codec,
    reads_are_bounded,
    references_resolve,
    sentences_open_plainly,
    spark_package_imports_no_dagster,
    suppressions_name_a_code,
    text_is_portable,
)

ROOT = Path(__file__).parent.parent
FOLDERS = ("lance_core", "lance_assets", "benchmarks", "examples", "tools", "tests")
IMPORT_TIMES_MAX = 3.6
HEAVY_PACKAGES = ("dagster", "lance", "pandas", "pyspark")

# rule, file, text that breaks it
BAD: tuple[tuple[Rule, str, str], ...] = (
    (pure_packages_do_no_io, "lance_core/format/x.py", "import os"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "from pathlib import Path"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "data = open('manifest')"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "import socket"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "import fsspec"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "from numpy import random"),
    (pure_packages_do_no_io, "lance_core/format/x.py", "bits = np.random.default_rng()"),
    (pure_packages_do_no_io, "lance_core/transactions/x.py", "import time"),
    (pure_packages_do_no_io, "lance_core/transactions/x.py", "import random"),
    (pure_packages_do_no_io, "lance_core/transactions/x.py", "when = datetime.now(UTC)"),
    (pure_packages_do_no_io, "lance_core/transactions/x.py", "from uuid import uuid4"),
    (pure_packages_do_no_io, "lance_core/transactions/x.py", "ours = uuid.uuid4()"),
    (every_module_is_imported, "lance_core/scan/lonely.py", "plan = 1"),
    (generated_code_stays_in_format, "lance_core/commit/loop.py", "from lance_core.format._pb import table_pb2"),
    (generated_code_stays_in_format, "benchmarks/x.py", "import lance_core.format._pb.table_pb2"),
    (core_executes_no_data, "lance_core/tasks/x.py", "import pickle"),
    (core_executes_no_data, "lance_core/tasks/x.py", "value = eval(text)"),
    (core_executes_no_data, "lance_core/tasks/x.py", "exec(text)"),
    (core_executes_no_data, "lance_core/datafiles/x.py", "import ctypes"),
    (core_executes_no_data, "lance_core/datafiles/x.py", "from yaml import load"),
    (core_executes_no_data, "lance_core/datafiles/x.py", "found = np.load(file, allow_pickle=True)"),
    (core_executes_no_data, "lance_core/datafiles/x.py", "found = pd.read_pickle(file)"),
    (reads_are_bounded, "lance_core/x/y.py", "data = store.read(path)"),
    (reads_are_bounded, "lance_core/x/y.py", "data = location.store.read(path)"),
    (exceptions_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (exceptions_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept (ValueError, BaseException):\n    pass"),
    (exceptions_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept:\n    pass"),
    (pylance_is_a_codec, "lance_core/datafiles/x.py", "from lance.file import LanceFileReader"),
    (pylance_is_a_codec, "lance_core/datafiles/x.py", "lance = importlib.import_module('lance')"),
    (pylance_is_a_codec, "lance_assets/spark/x.py", "import lance"),
    (pylance_is_a_codec, "lance_core/datafiles/lance_codec.py", "from lance.dataset import LanceDataset"),
    (pylance_is_a_codec, "lance_core/datafiles/lance_codec.py", "from lance import LanceDataset"),
    (core_imports_at_the_top, "lance_core/datafiles/lance_codec.py", "from lance.file import LanceFileReader"),
    (core_imports_at_the_top, "lance_core/commit/loop.py", "def f() -> None:\n    from lance_core import table"),
    (lance_assets_uses_the_public_api, "lance_assets/x.py", "from lance_core.commit.loop import commit"),
    (lance_assets_uses_the_public_api, "lance_assets/x.py", "from lance_core.commit import loop"),
    (spark_package_imports_no_dagster, "lance_assets/spark/x.py", "import dagster as dg"),
    (spark_package_imports_no_dagster, "lance_assets/spark/x.py", "from ..failures.error_translation import failed"),
    (suppressions_name_a_code, "tools/x.py", "a = b  # type: ignore"),
    (suppressions_name_a_code, "tools/x.py", "a = b  # noqa"),
    (packages_are_few, "lance_core/x.py", "x = 1"),
    (names_are_unique, "lance_core/scan/x.py", "class Part: ..."),
    (names_are_unique, "lance_core/scan/plan.py", "x = 1"),
    (functions_are_simple, "lance_core/x/y.py", "def f(x):\n" + "    if x and x: ...\n" * 8),
    (sentences_open_plainly, "lance_core/x/y.py", 'def f(x):\n    """Return x. What is None stays."""'),
    (sentences_open_plainly, "tests/x.py", 'def f(x):\n    """Whatever x is."""'),
    (patches_are_public, "tests/x.py", "patch.setattr(loop, '_history', f)"),
    (patches_are_public, "tests/x.py", "patch.setattr('lance_core.commit.loop._history', f)"),
    (sentences_open_plainly, "lance_assets/x.py", 'class C:\n    """Of one segment."""'),
)

# rule, file, text that it accepts
GOOD: tuple[tuple[Rule, str, str], ...] = (
    (
        pure_packages_do_no_io,
        "lance_core/format/x.py",
        "from datetime import datetime\nfrom uuid import UUID",
    ),
    (pure_packages_do_no_io, "lance_core/storage/x.py", "import os\nimport time\nimport uuid"),
    (every_module_is_imported, "lance_core/commit/loop.py", "rounds = 3"),
    (generated_code_stays_in_format, "lance_core/format/x.py", "from lance_core.format._pb import table_pb2"),
    (
        reads_are_bounded,
        "lance_core/x/y.py",
        "store.read(path, 0, 5)\nread_whole(store, path, LIMIT)\nf.read(5)",
    ),
    (reads_are_bounded, "lance_core/storage/y.py", "data = store.read(path)"),
    (exceptions_are_named, "lance_core/x/y.py", "try:\n    f()\nexcept BaseException:\n    raise"),
    (core_executes_no_data, "lance_core/tasks/x.py", "import json\nimport re\nshape = re.compile('x')"),
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
        lance_assets_uses_the_public_api,
        "lance_assets/x.py",
        "from lance_core import Table, operations\nimport lance_core.tasks",
    ),
    (spark_package_imports_no_dagster, "lance_assets/x.py", "import dagster as dg"),
    (
        spark_package_imports_no_dagster,
        "lance_assets/spark/x.py",
        "import pyspark\nfrom lance_assets.spark import types",
    ),
    (suppressions_name_a_code, "tools/x.py", "a = b  # type: ignore[arg-type]  # noqa: B006"),
    (functions_are_simple, "lance_core/x/y.py", "def f(x):\n" + "    if x and x: ...\n" * 7),
    (patches_are_public, "tests/x.py", "patch.setattr(loop, 'history', f)"),
    (patches_are_public, "tests/commit_defects.py", "patch.setattr(loop, '_history', f)"),
    (sentences_open_plainly, "lance_core/x/y.py", 'def f(x):\n    """Return the part of x that is `None`."""'),
    (names_are_unique, "lance_core/scan/x.py", "class Other: ..."),
)

# Files around each of those texts.
AROUND = {
    "lance_core/__init__.py": "from lance_core.commit import loop",
    "lance_core/commit/loop.py": "x = 1",
    "lance_assets/__init__.py": "_EXPORTS = {'failed': '.failures.error_translation'}",
    "lance_assets/failures/error_translation.py": "z = 1",
}
CROWD = {
    **{f"lance_core/{name}/plan.py": "x = 1" for name in ("a", "b", "c")},
    **{f"lance_core/{name}/part.py": "class Part: ..." for name in ("a", "b")},
    **{f"lance_core/module_{number}.py": "x = 1" for number in range(20)},
}
"""More files around the texts that break a rule about numbers of names."""

SLASH = "/"  # so that these cases are not findings in this file
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
    (links_resolve, "docs/x.md", "the [record](../lance_core/gone.md)", True),
    (links_resolve, "docs/x.md", "[here](x.md#part), [there](../docs/x.md), [web](https://example.org/x.md)", False),
    (references_resolve, "README.md", "see `scan/plan.py`", True),
    (references_resolve, "lance_core/x.py", '"""Start with `gone.py`."""', True),
    (references_resolve, "lance_core/x.py", "x = 1  # see gone.py", True),
    (references_resolve, "lance_core/x.py", 'x = "gone.py"  # see `lance_core/x.py` and `x.py`', False),
)

# contract, file, a line that breaks it
CONTRACTS: tuple[tuple[str, str, str], ...] = (
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
PACKAGES = (
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
def test_the_tree_follows_the_rule(rule: Rule) -> None:
    assert rule(project()) == []


@pytest.mark.parametrize(
    "rule", [text_is_portable, lock_names_no_host, references_resolve, links_resolve], ids=lambda rule: rule.__name__
)
def test_the_texts_follow_the_rule(rule: Callable[[Mapping[str, str]], list[str]]) -> None:
    assert rule(project_texts()) == []


@pytest.mark.parametrize(("rule", "path", "line"), BAD)
def test_a_broken_rule_is_found(rule: Rule, path: str, line: str) -> None:
    findings = rule(tree({**surroundings(rule), path: line}))
    assert len(findings) == 1
    assert re.match(rf"{re.escape(path)}:\d+: ", findings[0])


@pytest.mark.parametrize(("rule", "path", "line"), GOOD)
def test_a_rule_finds_no_more_than_it_should(rule: Rule, path: str, line: str) -> None:
    assert rule(tree({**surroundings(rule), path: line})) == []


def test_a_module_without_docstring_is_found() -> None:
    assert modules_have_docstrings((Module("tools.x", "tools/x.py", "import os"),)) != []


@pytest.mark.parametrize(
    ("opening", "is_term"),
    [
        ("Delete: removes rows.", True),
        ("Footer of format 0.1: the positions of its pages.", True),
        ("Delete the rows. Start here: `x`.", False),
        ("Delete the rows.\n\nStart here: `x`.", False),
    ],
)
def test_a_docstring_without_a_term_is_found(opening: str, is_term: bool) -> None:
    module = Module("lance_core.x", "lance_core/x.py", f'"""{opening}"""')
    assert (docstrings_open_with_a_term((module,)) == []) is is_term


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _, _ in BAD} | {modules_have_docstrings, docstrings_open_with_a_term} == set(RULES)


@pytest.mark.parametrize(("rule", "path", "text", "found"), PORTABLE)
def test_text_rules_find_what_they_should(
    rule: Callable[[Mapping[str, str]], list[str]], path: str, text: str, found: bool
) -> None:
    assert bool(rule({path: text})) is found


def test_the_contracts_hold() -> None:
    assert broken_contracts(ROOT) == []


@pytest.mark.parametrize(("contract", "path", "line"), CONTRACTS)
def test_a_broken_contract_is_found(contract: str, path: str, line: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "lance_core/table/table.py").touch()
    (tmp_path / "lance_core/runtime.py").touch()
    (tmp_path / path).write_text(line)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    assert broken_contracts(tmp_path) == [contract]


def test_every_contract_has_a_case() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {contract["name"] for contract in config["tool"]["importlinter"]["contracts"]} == {
        name for name, _, _ in CONTRACTS
    }


def test_importing_the_core_is_quick_and_light() -> None:
    """The bound is a multiple of the import time of the required libraries, since a busy machine slows down both."""
    program = (
        "import json, sys, time; start = time.thread_time(); "
        "import fsspec, google.protobuf.message, numpy, pyarrow, pyarrow.compute; libraries = time.thread_time(); "
        "import lance_core; done = time.thread_time(); "
        "print(json.dumps([(done - start) / (libraries - start), list(sys.modules)]))"
    )
    ratios = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        times, modules = json.loads(done.stdout)
        assert set(HEAVY_PACKAGES) & set(modules) == set()
        ratios.append(times)
    assert min(ratios) < IMPORT_TIMES_MAX


def surroundings(rule: Rule) -> Mapping[str, str]:
    return AROUND | CROWD if rule in (names_are_unique, packages_are_few) else AROUND


def tree(files: Mapping[str, str]) -> Modules:
    """Return modules made of paths and texts."""
    return tuple(
        Module(
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."),
            path,
            f'"""Doc."""\n{text}\n',
        )
        for path, text in files.items()
    )


@cache
def project() -> Modules:
    """Return the Python files of the repository."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(
        Module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
            path.relative_to(ROOT).as_posix(),
            path.read_text(encoding="utf-8"),
        )
        for path in paths
    )


@cache
def project_texts() -> dict[str, str]:
    """Return the text files that are committed or would be."""
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
    """Return the names of the import contracts that the tree below `root` breaks."""
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"],
        cwd=root, capture_output=True, text=True, env={"COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip
    broken = re.findall(r"^(.+?) BROKEN", done.stdout, re.MULTILINE)
    assert (done.returncode == 0) is (broken == []), done.stdout + done.stderr
    return [name.strip() for name in broken]
