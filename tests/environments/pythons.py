"""Python releases: runs the fast tests with each supported release of Python, in environments with the locked packages.

    python -m tests.environments.pythons                 the fast tests with every release
    python -m tests.environments.pythons 3.14 --all      the whole suite with one release

The releases are those of the classifiers in `pyproject.toml`. A release that is neither installed nor can be downloaded
counts as failed.
"""

import re
import subprocess
import sys
from collections.abc import Sequence

from tests.environments.virtual_environments import LOCK, ROOT, create, fast_tests, report, run_tests

_CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')


def main(arguments: Sequence[str]) -> int:
    everything = "--all" in arguments
    releases = [each for each in arguments if each != "--all"] or supported_releases()
    tests = ["tests"] if everything else fast_tests()
    return report({f"Python {each}": _test_release(each, tests) for each in releases})


def _test_release(release: str, tests: Sequence[str]) -> bool:
    """Return whether the tests pass with a release; without an interpreter of it, uv prints the reason."""
    try:
        interpreter = create(f"python-{release}", release, LOCK)
    except subprocess.CalledProcessError:
        return False
    return run_tests(interpreter, tests)


def supported_releases() -> list[str]:
    return _CLASSIFIER.findall((ROOT / "pyproject.toml").read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
