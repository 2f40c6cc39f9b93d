"""Python releases: runs the fast tests with each supported release of Python, in environments with the locked packages.

    python -m tests.environments.pythons                 the fast tests with every release
    python -m tests.environments.pythons 3.14 --all      the whole suite with one release

The releases are those of the classifiers in `pyproject.toml`.
"""

import re
import sys
from collections.abc import Sequence

from tests.environments.virtual_environments import LOCK, ROOT, create, fast_tests, report, run_tests

_CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')


def main(arguments: Sequence[str]) -> int:
    everything = "--all" in arguments
    releases = [each for each in arguments if each != "--all"] or supported_releases()
    tests = ["tests"] if everything else fast_tests()
    return report({f"Python {each}": run_tests(create(f"python-{each}", each, LOCK), tests) for each in releases})


def supported_releases() -> list[str]:
    return _CLASSIFIER.findall((ROOT / "pyproject.toml").read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
