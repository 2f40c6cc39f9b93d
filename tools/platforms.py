"""Platforms: which wheels the locked versions of the core's dependencies and of faiss have, as a table for
docs/compatibility.md.

    python tools/platforms.py             print the table
    python tools/platforms.py --check     compare it with the page

It reads the list of files of each package from the package index. Start at `platform_table`.
"""

import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
INDEX = os.environ.get("PACKAGE_INDEX", "https://pypi.org/simple")
PLATFORMS = {
    "Linux x86_64": r"manylinux.*x86_64",
    "Linux arm64": r"manylinux.*aarch64",
    "macOS arm64": r"macosx.*(arm64|universal2)",
    "macOS x86_64": r"macosx.*(x86_64|universal2)",
    "Alpine x86_64": r"musllinux.*x86_64",
    "Windows x86_64": r"win_amd64",
}
RELEASES = ("311", "312", "313", "314")
MORE = ("faiss-cpu",)
_FILE = re.compile(r">\s*([^<>\s]+\.whl)\s*<")


def platform_table() -> str:
    """Return the table of the platforms for which each package has wheels for every supported Python."""
    lines = ["| package | version | " + " | ".join(PLATFORMS) + " |", "|---|---|" + "---|" * len(PLATFORMS)]
    for package in (*_dependencies(), *MORE):
        version = _locked_version(package)
        files = [file for file in _list_wheels(package) if file.split("-")[1] == version]
        cells = ["yes" if has_wheels(files, pattern) else "no" for pattern in PLATFORMS.values()]
        lines.append(f"| {package} | {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def has_wheels(files: Iterable[str], platform: str) -> bool:
    """Return whether wheels exist for a platform and every supported release of Python."""
    tags = [file.removesuffix(".whl").split("-")[-3:] for file in files]
    fitting = [(python, abi) for python, abi, name in tags if name == "any" or re.search(platform, name)]
    return all(any(_supports(python, abi, release) for python, abi in fitting) for release in RELEASES)


def _supports(python: str, abi: str, release: str) -> bool:
    if abi == "none":
        return "py3" in python.split(".")
    if abi == "abi3":
        return int(python.split(".")[0].removeprefix("cp3")) <= int(release.removeprefix("3"))
    return abi == f"cp{release}"


def _dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [each.partition(">")[0] for each in project["dependencies"]]


def _locked_version(package: str) -> str:
    match = re.search(rf"^{package}==(\S+)", (ROOT / "requirements" / "dev.lock").read_text(), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{package} is not in the lock")
    return match[1]


def _list_wheels(package: str) -> list[str]:
    with urllib.request.urlopen(f"{INDEX}/{package}/", timeout=60) as answer:
        return _FILE.findall(answer.read().decode())


def main(arguments: list[str]) -> int:
    table = platform_table()
    if arguments != ["--check"]:
        print(table, end="")
    elif table not in PAGE.read_text():
        print(f"the table of platforms in {PAGE.name} is not current:\n{table}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
