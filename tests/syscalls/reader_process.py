"""Reader process: runs the checks of `table_checks.py` outside the process of a harness, since damaged files can end or
block a process that decodes them.

    with ReaderProcess() as reader:
        problems = reader.find_problems(uri, expectation)

A process that ends or does not answer in time is a problem of the table, and another one takes its place.
"""

import resource
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tests.syscalls.engines import Rows
from tests.syscalls.json_process import JsonProcess, ProcessEnded, answer_requests
from tests.syscalls.table_checks import (
    READER_ENDED,
    Expectation,
    PossibleRows,
    Problem,
    find_problems,
    find_row_problems,
)

_ADDRESS_SPACE_MAX = 32 << 30


class ReaderProcess(JsonProcess):
    """Process that checks tables, one after the other."""

    def __init__(self) -> None:
        super().__init__("tests.syscalls.reader_process")

    def find_problems(self, uri: str, expected: Expectation | PossibleRows) -> list[Problem]:
        try:
            answer = self.ask({"uri": uri, "check": type(expected).__name__, "expected": asdict(expected)})
        except ProcessEnded as ended:
            return [Problem(READER_ENDED, f"the process that read the table {ended}")]
        return [Problem(**fields) for fields in answer]


def _answer(request: Mapping[str, Any]) -> list[dict[str, str]]:
    fields = {**request["expected"], "readers": tuple(request["expected"]["readers"])}
    fields["acknowledged"] = _parse_versions(fields["acknowledged"])
    if request["check"] == "Expectation":
        expected = Expectation(**{**fields, "known": _parse_versions(fields["known"])})
        return [asdict(problem) for problem in find_problems(request["uri"], expected)]
    possible = tuple(None if rows is None else _parse_rows(rows) for rows in fields["possible"])
    return [
        asdict(problem)
        for problem in find_row_problems(request["uri"], PossibleRows(**{**fields, "possible": possible}))
    ]


def _parse_versions(versions: Mapping[str, list[list[int]]]) -> dict[str, Rows]:
    return {key: _parse_rows(rows) for key, rows in versions.items()}


def _parse_rows(rows: list[list[int]]) -> Rows:
    return [(row[0], row[1]) for row in rows]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_MAX, _ADDRESS_SPACE_MAX))
    answer_requests(_answer)
