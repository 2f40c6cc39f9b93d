"""`lance-assets pack-executors`: requirements, errors, launcher. `tests/clusters` runs executors with an archive."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lance_assets.cli.executor_archive import LAUNCHER, ArchiveSpec, requirements_of, select_requirements, write_archive
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
