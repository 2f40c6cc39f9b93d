"""`lance-assets pack-executors`: requirements, errors, launcher. `tests/clusters` runs executors with an archive."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lance_assets.cli.executor_archive import (
    LAUNCHER,
    ArchiveSpec,
    compress,
    requirements_of,
    select_requirements,
    write_archive,
)
from lance_assets.cli.main import main
from lance_core import InvalidInput

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_archive_has_the_dependencies_of_the_core_and_of_the_extras() -> None:
    def names(*extras: str) -> set[str]:
        return {re.split("[<>=!~;]", each)[0] for each in requirements_of("lance-assets", extras)}

    core = names()
    assert {"pylance", "pyarrow", "datafusion", "numpy"} <= core
    assert core.isdisjoint({"pyspark", "pandas", "dagster", "boto3"})
    assert names("s3") - core == {"boto3"}
    assert names("postgresql") - core == {"sqlalchemy", "psycopg[binary]"}
    with pytest.raises(InvalidInput, match=r"no extra 's4'; its extras are .*s3"):
        requirements_of("lance-assets", ["s4"])


def test_a_requirement_of_an_extra_may_have_another_condition() -> None:
    declared = [
        "numpy>=2.0",
        "psycopg[binary]>=3.2; extra == 'postgresql'",
        "p[sql]; extra == 'postgresql'",
        "sqlalchemy>=2; extra == 'sql'",
        "setuptools; (python_version >= '3.12') and extra == 'spark'",
        "tomli; python_version < '3.11'",
    ]
    core = ["numpy>=2.0", "tomli;python_version < '3.11'"]
    assert select_requirements("p", declared, []) == core
    expected = {*core, "psycopg[binary]>=3.2", "sqlalchemy>=2", "setuptools;(python_version >= '3.12')"}
    assert set(select_requirements("p", declared, ["postgresql", "spark"])) == expected


@pytest.mark.parametrize(
    ("spec", "name", "message"),
    [
        (ArchiveSpec(PYTHON, "linux_x86_64"), "a.jar", r"end it with \.tar\.gz or \.tgz"),
        (ArchiveSpec(PYTHON, "windows"), "a.tgz", "choose one of linux_x86_64, linux_aarch64"),
        (ArchiveSpec("3", "linux_x86_64"), "a.tgz", "'3' is not a release of Python"),
    ],
)
def test_invalid_archives_are_refused(spec: ArchiveSpec, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        write_archive(spec, tmp_path / name)


def test_an_archive_has_each_library_once_and_no_unused_ones(tmp_path: Path) -> None:
    files = {
        "lib/pyarrow/libarrow.so.2600": b"arrow",
        "lib/pyarrow/libarrow_python.so": b"python",
        "lib/pyarrow/libarrow_python.so.2600": b"python",
        "lib/pyarrow/libarrow_s3.so.2600": b"s3",
        "lib/numpy/f2py/a.py": b"",
        "lib/numpy/__init__.pyi": b"",
        "lib/numpy/__init__.py": b"",
    }
    for name, content in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(content)
    unused = {"lib/numpy/f2py/a.py", "lib/numpy/__init__.pyi"}
    for all_of_arrow in (True, False):
        written = compress(tmp_path / "root", tmp_path / "a.tgz", all_of_arrow=all_of_arrow)
        expected = files.keys() - unused - (set() if all_of_arrow else {"lib/pyarrow/libarrow_s3.so.2600"})
        with tarfile.open(written.path) as archive:
            assert set(archive.getnames()) == expected
            archive.extractall(tmp_path / "unpacked", filter="data")
        assert all((tmp_path / "unpacked" / name).read_bytes() == files[name] for name in expected)
        link = tmp_path / "unpacked" / "lib/pyarrow/libarrow_python.so.2600"
        assert link.readlink() == Path("libarrow_python.so")
        assert written.unpacked_size == sum(len(files[name]) for name in expected) - len(b"python")


def test_an_engine_that_is_missing_is_named_with_the_remedy() -> None:
    """In a process that cannot import DataFusion, rows are written and read, and a condition is refused."""
    program = """
import sys, tempfile
sys.modules["datafusion"] = None
from lance_core import MissingDependency, Table
table = Table.create(tempfile.mkdtemp() + "/t", {"id": [1, 2]}, durable=False)
print(table.append({"id": [3]}).table.to_table().num_rows)
try:
    table.to_table(filter="id = 1")
except MissingDependency as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows, message = done.stdout.splitlines()
    assert rows == "3"
    assert re.search(
        r"SQL needs the package datafusion.* pip install datafusion.*without the option --without-sql", message
    )


def test_uv_is_named_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pack-executors", "-o", str(tmp_path / "a.tgz")]) == 2
    assert "pip install uv" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_launcher_runs_the_python_of_the_machine_with_the_packages(tmp_path: Path) -> None:
    """The packages come before those of the environment, and another Python is refused with a reason."""
    home = tmp_path / "the archive"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "packed.py").write_text("ANSWER = 42\n")
    launcher = home / "bin" / "python"
    (tmp_path / f"python{PYTHON}").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": "/elsewhere"}

    def run(python: str) -> "subprocess.CompletedProcess[str]":
        launcher.write_text(LAUNCHER.format(python=python))
        launcher.chmod(0o755)
        program = "import packed, os; print(packed.ANSWER, os.environ['PYTHONPATH'])"
        command = ["bin/python", "-c", program]
        return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)

    assert run(PYTHON).stdout.split(maxsplit=1) == ["42", f"{home}/lib:/elsewhere\n"]
    refused = run("3.99")
    assert refused.returncode == 127
    assert "python3.99 is not on the path" in refused.stderr
