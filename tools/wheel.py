"""Checks that the one wheel in a folder holds what users are promised: packages, type marks, protos, licence.

Knows nothing of how the wheel is built; `make wheel` builds it and calls this. Start at `faults`.
"""

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("lance_core", "lance_assets")
NEVER = ("tests/", "benchmarks/", "tools/", "examples/")


def promised(root: Path) -> list[str]:
    """The files of the tree that users must find in the wheel, by their names there."""
    code = [path for package in PACKAGES for end in ("py", "pyi") for path in (root / package).rglob(f"*.{end}")]
    marks = [root / package / "py.typed" for package in PACKAGES]
    protos = [path.relative_to(root) for path in (root / "protos").rglob("*.proto")]
    return sorted(
        [path.relative_to(root).as_posix() for path in code + marks]
        + [(Path("lance_core") / path).as_posix() for path in protos]
    )


def faults(names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """What is wrong with a wheel of these file names."""
    held = set(names)
    lost = [f"missing: {name}" for name in expected if name not in held]
    strange = [f"does not belong: {name}" for name in sorted(held) if name.startswith(NEVER)]
    licensed = any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
    return lost + strange + ([] if licensed else ["missing: LICENSE"])


def main(folder: str) -> int:
    wheels = sorted(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        print(f"expected one wheel in {folder}, found {len(wheels)}; run `make wheel`", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheels[0]) as archive:
        found = faults(archive.namelist(), promised(ROOT))
    print("\n".join(found) if found else f"{wheels[0]}: complete")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
