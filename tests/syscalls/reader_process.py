"""Reader process: runs the checks of `table_checks.py` outside the process of a harness, since damaged files can end or
block a process that decodes them.

    with ReaderProcess() as reader:
        problems = reader.find_problems(uri, expectation)

A process that ends or does not answer in time is a problem of the table, and another one takes its place.
"""

import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.syscalls.engines import Rows
from tests.syscalls.table_checks import READER_ENDED, Expectation, Problem, find_problems

ROOT = Path(__file__).parents[2]
_ANSWER_SECONDS_MAX = 60.0
_ADDRESS_SPACE_MAX = 32 << 30


class ReaderProcess:
    """Process that checks tables, one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ReaderProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def find_problems(self, uri: str, expected: Expectation) -> list[Problem]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"uri": uri, "expected": asdict(expected)}).encode() + b"\n")
            process.stdin.flush()
            has_answer = select.select([process.stdout], [], [], _ANSWER_SECONDS_MAX)[0]
            line = process.stdout.readline() if has_answer else b""
        except BrokenPipeError:
            line = b""
        if line:
            return [Problem(**fields) for fields in json.loads(line)]
        code = process.poll()
        self._stop()
        why = f"gave no answer for {_ANSWER_SECONDS_MAX:.0f} s" if code is None else f"ended with {code}"
        return [Problem(READER_ENDED, f"the process that read the table {why}")]

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.syscalls.reader_process"]
        environment = {**os.environ, "LANCE_LOG": "error", "RUST_BACKTRACE": "0"}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_MAX, _ADDRESS_SPACE_MAX))
    for line in sys.stdin:
        request = json.loads(line)
        problems = find_problems(request["uri"], _parse_expectation(request["expected"]))
        os.write(1, json.dumps([asdict(problem) for problem in problems]).encode() + b"\n")


def _parse_expectation(fields: Mapping[str, Any]) -> Expectation:
    def parse_rows(by_key: Mapping[str, list[list[int]]]) -> dict[str, Rows]:
        return {key: [(row[0], row[1]) for row in rows] for key, rows in by_key.items()}

    return Expectation(
        **{
            **fields,
            "readers": tuple(fields["readers"]),
            "acknowledged": parse_rows(fields["acknowledged"]),
            "known": parse_rows(fields["known"]),
        }
    )


if __name__ == "__main__":
    main()
