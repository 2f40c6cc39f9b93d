"""Version bounds: runs tests with the lowest and the newest versions of all dependencies that `pyproject.toml` allows.

    python -m tests.environments.bounds                  every environment below
    python -m tests.environments.bounds lowest           one of them

    lowest     the lowest version of each direct dependency, with all extras
    core       the lowest version of each dependency of the core, some of which the extras raise
    newest     the newest version of everything
    pylance-N  a release of pylance between the lowest and the newest
    fresh      the built wheel, as users install it, with the oldest release of Spark

`lowest` and `newest` run the fast tests and the blocks of README.md, which write with Spark and materialize assets of
Dagster. The others run the tests of files and tables. Tests that compare with pylance need the release of the lock, so
environments with an older one leave them out.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.documentation import README_PAGE, complete_blocks, run_python
from tests.environments.virtual_environments import (
    ENVIRONMENTS,
    LOWEST_PYTHON,
    ROOT,
    create,
    fast_tests,
    install_over_lock,
    report,
    resolve,
    run_tests,
    run_uv,
)

_ORACLE = re.compile(r"^\s*(import lance\b(?!_)|from lance import)", re.MULTILINE)
_CODEC_TESTS = ("tests/lance_core/datafiles", "tests/lance_core/scan", "tests/lance_core/table")
_README_TESTS = ("tests/test_readme.py", "-k", README_PAGE)
PYLANCE_RELEASES = ("12", "13")
FRESH_REQUIREMENTS = ("lance-assets[spark,dagster]", "pyspark==3.5.*")


def main(names: Sequence[str]) -> int:
    environments: dict[str, Callable[[], bool]] = {
        "lowest": check_lowest,
        "core": check_core,
        "newest": check_newest,
        **{f"pylance-{release}": partial(check_pylance, release) for release in PYLANCE_RELEASES},
        "fresh": check_fresh,
    }
    return report({name: environments[name]() for name in names or environments})


def check_lowest() -> bool:
    # The extra `dev` has the oracle of the tests as another bound of pylance.
    versions = resolve("lowest", "--resolution", "lowest-direct", overrides=[lowest_versions()["pylance"]])
    interpreter = create("lowest", LOWEST_PYTHON, versions)
    return run_tests(interpreter, [*fast_tests(), *_CODEC_TESTS], *_without_oracle()) and _run_readme(interpreter)


def check_core() -> bool:
    return run_tests(
        install_over_lock("core", *lowest_versions().values()), [*fast_tests(), *_CODEC_TESTS], *_without_oracle()
    )


def check_newest() -> bool:
    interpreter = create("newest", LOWEST_PYTHON, resolve("newest"))
    return run_tests(interpreter, fast_tests()) and _run_readme(interpreter)


def check_pylance(release: str) -> bool:
    return run_tests(install_over_lock(f"pylance-{release}", f"pylance=={release}.*"), _CODEC_TESTS, *_without_oracle())


def check_fresh() -> bool:
    """Install the wheel into an empty environment and run the blocks of README.md outside the source tree."""
    with tempfile.TemporaryDirectory(prefix="fresh-") as directory:
        run_uv("build", "--quiet", "--wheel", "--out-dir", directory, str(ROOT))
        (wheel,) = Path(directory).glob("*.whl")
        requirements = Path(directory, "requirements.txt")
        project, *others = FRESH_REQUIREMENTS
        requirements.write_text("\n".join([f"{project} @ {wheel.as_uri()}", *others]))
        interpreter = create("fresh", LOWEST_PYTHON, requirements)
    subprocess.run([ENVIRONMENTS / "fresh" / "bin" / "lance-assets", "--help"], check=True, stdout=subprocess.DEVNULL)
    for number, block in enumerate(complete_blocks(README_PAGE)):
        with tempfile.TemporaryDirectory(prefix="block-") as directory:
            run_python(block, Path(directory), interpreter)
        print(f"block {number} of {README_PAGE} ran", flush=True)
    return True


def _run_readme(interpreter: Path) -> bool:
    return run_tests(interpreter, _README_TESTS, workers=1)


def lowest_versions() -> dict[str, str]:
    """Return the lower bounds of the dependencies of the core, as requirements of exactly these versions."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {each.partition(">=")[0]: each.replace(">=", "==") for each in dependencies}


def _without_oracle() -> list[str]:
    """Return options that leave out the test modules that import the oracle, directly or through another module."""
    texts = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    oracle = {path for path, text in texts.items() if _ORACLE.search(text)}
    found = oracle
    while found:
        names = [re.escape(".".join(path.with_suffix("").parts)) for path in oracle]
        imports = re.compile(rf"^(from|import) ({'|'.join(names)})\b", re.MULTILINE)
        found = {path for path, text in texts.items() if path not in oracle and imports.search(text)}
        oracle |= found
    return [f"--ignore={path}" for path in sorted(oracle) if path.name.startswith("test_")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
