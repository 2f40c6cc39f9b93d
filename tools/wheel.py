"""Wheel check: verifies that the one wheel in a folder contains all packages, type markers, protos and the licence.

It does not build the wheel; `make wheel` builds it and runs this check. Start reading at `find_faults`.
"""

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("lance_core", "lance_assets")
NEVER = ("tests/", "benchmarks/", "tools/", "examples/")


def expected_files(root: Path) -> list[str]:
    """Return the files of the source tree that the wheel must contain, by their names in the wheel."""
    code = [path for package in PACKAGES for end in ("py", "pyi") for path in (root / package).rglob(f"*.{end}")]
    marks = [root / package / "py.typed" for package in PACKAGES]
    protos = [path.relative_to(root) for path in (root / "protos").rglob("*.proto")]
    return sorted(
        [path.relative_to(root).as_posix() for path in code + marks]
        + [(Path("lance_core") / path).as_posix() for path in protos]
    )


def find_faults(names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Return the faults of a wheel with these file names."""
    present = set(names)
    missing = [f"missing: {name}" for name in expected if name not in present]
    unexpected = [f"does not belong: {name}" for name in sorted(present) if name.startswith(NEVER)]
    licensed = any(name.endswith(".dist-info/licenses/LICENSE") for name in present)
    return missing + unexpected + ([] if licensed else ["missing: LICENSE"])


def main(folder: str) -> int:
    wheels = sorted(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        print(f"expected one wheel in {folder}, found {len(wheels)}; run `make wheel`", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheels[0]) as archive:
        problems = find_faults(archive.namelist(), expected_files(ROOT))
    print("\n".join(problems) if problems else f"{wheels[0]}: complete")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
