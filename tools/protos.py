"""Protobuf compiler: compiles `protos/lance/` into `lance_core/format/_pb/`, or checks that the committed code is
current.

    python tools/protos.py            write the generated modules
    python tools/protos.py --check    list the stale modules, and exit with 1 if there are any

The compiler lives in its own environment under `.tools/`, created on first use. Its gencode (5.29) is older than the
runtime used in development, which keeps our minimum version of protobuf low. Generated code is never edited;
`_pb/__init__.py` is written by hand and left unchanged. Start reading at `generate`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "lance_core/format/_pb"
SOURCES = ROOT / "protos" / "lance"
COMPILER = "grpcio-tools==1.71.2"
ENVIRONMENT = ROOT / ".tools" / "protos"
COMMAND = "python tools/protos.py"


class ToolError(Exception):
    """A step of the tool failed; the message names the step and the remedy."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description="compile protos/lance")
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 if files are stale")
    check: bool = parser.parse_args(arguments).check
    try:
        fresh = generate(compiler())
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2
    stale = differences(fresh, committed())
    if check:
        return report(stale)
    for name in stale:
        write(name, fresh.get(name))
    print(f"{PACKAGE}: {len(stale)} of {len(fresh)} generated files changed")
    return 0


def compiler() -> Path:
    """Return the interpreter of the tool environment, which is created if it is missing or has another compiler."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "compiler"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == COMPILER:
        return python
    print(f"installing {COMPILER} into {ENVIRONMENT.relative_to(ROOT)} (once)", file=sys.stderr)
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    # --only-binary: without a wheel for this Python, pip would build the compiler for half an hour.
    options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    install = [str(python), "-m", "pip", "install", *options, COMPILER]
    run(install, f"{COMPILER} could not be installed; check pip's access to a package index")
    stamp.write_text(COMPILER, encoding="utf-8")
    return python


def generate(python: Path) -> dict[str, str]:
    """Return the text of every generated file by its name."""
    names = sorted(source.name for source in SOURCES.glob("*.proto"))
    with tempfile.TemporaryDirectory() as target:
        options = ["-I", f"{PACKAGE}={SOURCES}", f"--python_out={target}", f"--pyi_out={target}"]
        inputs = [f"{PACKAGE}/{name}" for name in names]
        run([str(python), "-m", "grpc_tools.protoc", *options, *inputs], "protos/lance does not compile")
        return read_generated(Path(target) / PACKAGE)


def committed() -> dict[str, str]:
    return read_generated(ROOT / PACKAGE)


def read_generated(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*_pb2.py*")}


def differences(fresh: dict[str, str], present: dict[str, str]) -> list[str]:
    """Return the names of missing, superfluous and changed files."""
    return sorted(name for name in fresh | present if fresh.get(name) != present.get(name))


def report(stale: Sequence[str]) -> int:
    if not stale:
        return 0
    print("generated code does not match protos/lance:", file=sys.stderr)
    for name in stale:
        print(f"  {PACKAGE}/{name}", file=sys.stderr)
    print(f"run: {COMMAND}", file=sys.stderr)
    return 1


def write(name: str, text: str | None) -> None:
    path = ROOT / PACKAGE / name
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolError(f"{failure}:\n{done.stderr.strip() or done.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main())
