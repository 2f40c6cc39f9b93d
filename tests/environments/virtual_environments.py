"""Virtual environments of the tests: made by uv below `.tools/environments`, from the lock or from other resolutions.

Start with `create`.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".tools" / "environments"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
LOCK = ROOT / "requirements" / "dev.lock"
LOWEST_PYTHON = "3.11"


def create(name: str, python: str, requirements: Path) -> Path:
    """Return the interpreter of a new environment that has exactly these requirements. uv finds the Python of this
    version on the path or among the versions of pyenv, or downloads it."""
    directory = ENVIRONMENTS / name
    run_uv("venv", "--quiet", "--clear", "--seed", "--python", python, str(directory))
    interpreter = directory / "bin" / "python"
    run_uv("pip", "install", "--quiet", "--python", str(interpreter), "--requirements", str(requirements))
    return interpreter


def install_over_lock(name: str, *arguments: str) -> Path:
    """Return the interpreter of a new environment with the locked packages, over which these are installed."""
    interpreter = create(name, LOWEST_PYTHON, LOCK)
    run_uv("pip", "install", "--quiet", "--python", str(interpreter), *arguments)
    return interpreter


def resolve(name: str, *options: str, overrides: Iterable[str] = ()) -> Path:
    """Return a file with the versions to which the requirements of the project resolve, with its extra `dev`."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    override_file, result = (ENVIRONMENTS / f"{name}.{suffix}.txt" for suffix in ("overrides", "requirements"))
    override_file.write_text("".join(f"{each}\n" for each in overrides))
    run_uv(
        *("pip", "compile", str(ROOT / "pyproject.toml"), "--extra", "dev", "--python-version", LOWEST_PYTHON),
        *("--override", str(override_file), "--output-file", str(result), "--no-header", "--no-annotate"),
        *("--upgrade", "--quiet", *options),
    )
    return result


def run_uv(*arguments: str) -> None:
    search_path = os.pathsep.join([os.environ["PATH"], *map(str, _pyenv_directories())])
    subprocess.run([UV, *arguments], check=True, env={**os.environ, "PATH": search_path})


def _pyenv_directories() -> list[Path]:
    """Return the directories of pyenv's interpreters, which are on the path only as shims of one chosen version."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return sorted(root.glob("versions/*/bin"))


def run_tests(
    interpreter: str | Path,
    tests: Iterable[str],
    *options: str,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
) -> bool:
    """Run tests of the project with an interpreter, and return whether all passed."""
    command = [interpreter, "-m", "pytest", f"--numprocesses={workers}", "--dist=loadgroup", "-q", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, env={**project_environment(), **(environment or {})}, check=False)
    return done.returncode == 0


def project_environment() -> dict[str, str]:
    """Return the environment of a process that imports the source tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def report(results: Mapping[str, bool]) -> int:
    """Print which runs passed, and return the exit code."""
    print("\n".join(f"{'passed' if passed else 'FAILED'}  {name}" for name, passed in results.items()), flush=True)
    return 0 if all(results.values()) else 1


def fast_tests() -> list[str]:
    """Return the tests of `make test-fast`, as the Makefile passes them."""
    tests = os.environ.get("FAST_TESTS", "").split()
    if not tests:
        sys.exit("run this with make, which sets FAST_TESTS")
    return tests
