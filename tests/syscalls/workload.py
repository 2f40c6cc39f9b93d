"""Workload process: runs the steps of one engine on a table and reports each acknowledged version with its rows.

    python -m tests.syscalls.workload ours /tmp/place/table [--steps create,append] [--defect name]

Every report is one line of JSON on the standard output, written by one system call after the engine has returned. The
step `append concurrently` runs processes of this module, which append one version for each of their rows.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.syscalls.engines import ENGINES, Engine, age_files, key_of
from tests.syscalls.planted_defects import DEFECTS
from tests.syscalls.steps import CONCURRENT_ROWS, expected_rows


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Report of a step that has returned, or that begins or ends the removal of versions."""

    step: str
    key: str = ""
    rows: Sequence[tuple[int, int]] = field(default_factory=tuple)
    begins_removal: bool = False
    retained: Sequence[str] = field(default_factory=tuple)
    """Keys of the versions that can be read after a removal."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("uri")
    parser.add_argument("--steps", default="")
    parser.add_argument("--rows", default="")
    parser.add_argument("--defect", choices=("", *DEFECTS), default="")
    options = parser.parse_args(arguments)
    engine = ENGINES[options.engine]()
    if options.defect:
        DEFECTS[options.defect]()
    if options.rows:
        for row in options.rows.split(","):
            key = key_of(engine, options.uri, engine.append(options.uri, {int(row): 0}, intent=f"row {row}"))
            _report(Acknowledgement(f"append row {row}", key, engine.read(options.uri, key)))
        return 0
    steps = tuple(options.steps.split(",")) if options.steps else engine.steps
    rows_after = expected_rows(steps)
    keys: list[str] = []
    for step in steps:
        if step == "append concurrently":
            _append_concurrently(engine.name, options.uri)
            continue
        if step == "clean up":
            age_files(Path(options.uri))
            _report(Acknowledgement(step, begins_removal=True))
        key = key_of(engine, options.uri, engine.run(options.uri, step, intent=step))
        if step == "clean up":
            known = dict.fromkeys([*keys, *map(str, engine.list_versions(options.uri))])
            _report(Acknowledgement(step, retained=[each for each in known if _can_read(engine, options.uri, each)]))
        elif key:
            keys.append(key)
            rows = engine.read(options.uri, key)
            assert list(rows) == sorted(rows_after[step].items()), f"{step} left {rows}"
            _report(Acknowledgement(step, key, rows))
    return 0


def read_acknowledgements(data: bytes) -> Acknowledgement:
    fields = json.loads(data)
    return Acknowledgement(**{**fields, "rows": [tuple(row) for row in fields["rows"]]})


def _append_concurrently(engine: str, uri: str) -> None:
    command = [sys.executable, "-m", "tests.syscalls.workload", engine, uri, "--rows"]
    processes = [subprocess.Popen([*command, ",".join(map(str, rows))]) for rows in CONCURRENT_ROWS]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"concurrent processes ended with {codes}")


def _can_read(engine: Engine, uri: str, key: str) -> bool:
    try:
        engine.read(uri, key)
    except Exception:  # noqa: BLE001 - each engine has errors of its own
        return False
    return True


def _report(acknowledgement: Acknowledgement) -> None:
    os.write(1, json.dumps(asdict(acknowledgement)).encode() + b"\n")


if __name__ == "__main__":
    # deltalake's threads may abort a process that shuts down in the usual way
    os._exit(main(sys.argv[1:]))
