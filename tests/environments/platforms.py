"""Recipes of platforms: runs `tests/platforms` in an environment that has the client libraries of the platforms.

python -m tests.environments.platforms
"""

import sys

from tests.environments.virtual_environments import ROOT, install_over_lock, report, run_tests

REQUIREMENTS = ROOT / "requirements" / "platforms.txt"


def main() -> int:
    interpreter = install_over_lock("platforms", "--requirements", str(REQUIREMENTS))
    passed = run_tests(interpreter, ["tests/platforms"], workers=0, environment={"PLATFORM_TESTS": "yes"})
    return report({"recipes of platforms": passed})


if __name__ == "__main__":
    sys.exit(main())
