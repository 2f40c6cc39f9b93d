"""Fault server: a process that has loaded one engine and runs each step in a fork of itself, with a fault in one of its
system calls. To the engine, a fork is equivalent to a new process, and it starts in a fraction of the time.

    with FaultServer("ours") as server:
        run = server.run_step(uri, "append", directory=place, fault=Fault(7, errno.EIO))
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.syscalls.engines import ENGINES
from tests.syscalls.json_process import JsonProcess, ProcessEnded, answer_requests
from tests.syscalls.planted_defects import DEFECTS
from tests.syscalls.python_calls import supervise_python
from tests.syscalls.supervisor import Fault, SystemCall, can_supervise, supervise

_MODULES = {"ours": ("lance_core", "lance.file"), "pylance": ("lance",), "deltalake": ("deltalake",)}


@dataclass(frozen=True, slots=True)
class StepRun:
    """Outcome of a step: the key of its version, or its error."""

    calls: tuple[SystemCall, ...] = ()
    key: str = ""
    error: str = ""
    is_typed: bool = False
    """`True` for an error that the engine defines."""
    message: str = ""
    failed_names: tuple[str, ...] = ()
    """Paths that the file on which the call failed has after the step."""

    @property
    def has_ended(self) -> bool:
        """Return whether the step has returned or raised."""
        return self.error != "no answer"


class FaultServer(JsonProcess):
    """Client of a fault server."""

    seconds_max = 900.0

    def __init__(self, engine: str, *, python_only: bool = False) -> None:
        super().__init__("tests.syscalls.fault_server", engine, *(["--python-only"] if python_only else []))

    def run_step(
        self, uri: str, step: str, *, directory: Path, fault: Fault | None = None, defect: str = ""
    ) -> StepRun:
        """Run the step with its name as the intent, and with the fault in a call on a file of the directory."""
        request = {"uri": uri, "step": step, "directory": str(directory), "defect": defect}
        try:
            answer = self.ask({**request, "fault": asdict(fault) if fault else None})
        except ProcessEnded as ended:
            return StepRun(error="no answer", message=f"the process {ended}")
        calls = tuple(SystemCall(**call) for call in answer["calls"])
        return StepRun(**{**answer, "calls": calls, "failed_names": tuple(answer["failed_names"])})


def _answer(engine_name: str, python_only: bool, request: Mapping[str, Any]) -> dict[str, Any]:
    def run() -> bytes:
        if request["defect"]:
            DEFECTS[request["defect"]]()
        engine = ENGINES[engine_name]()
        try:
            outcome: dict[str, Any] = {"key": engine.run(request["uri"], request["step"], request["step"])}
        except BaseException as error:  # noqa: BLE001 - a panic of a library is no Exception
            bases = {base.__name__ for base in type(error).__mro__}
            outcome = {"error": type(error).__name__, "message": str(error)[:300]}
            outcome["is_typed"] = "LanceError" in bases if engine_name == "ours" else "Exception" in bases
        return json.dumps(outcome).encode()

    directory = Path(request["directory"])
    fault = Fault(**request["fault"]) if request["fault"] else None
    done = supervise_python(run, directory, fault) if python_only else supervise(run, directory, fault)
    outcome = json.loads(done.answer) if done.answer else {"error": "no answer"}
    names = _names_of(directory, done.failed_file) if done.failed_file else []
    return {**outcome, "calls": [asdict(call) for call in done.calls], "failed_names": names}


def _names_of(directory: Path, file: tuple[int, int]) -> list[str]:
    paths = [directory, *directory.rglob("*")]
    statuses = [(path, os.stat(path, follow_symlinks=False)) for path in paths]
    names = [path for path, status in statuses if (status.st_dev, status.st_ino) == file]
    return [str(path.relative_to(directory)) for path in names]


def main(arguments: list[str]) -> None:
    engine = arguments[0]
    for module in _MODULES[engine]:
        importlib.import_module(module)
    python_only = "--python-only" in arguments or not can_supervise()
    answer_requests(lambda request: _answer(engine, python_only, request))


if __name__ == "__main__":
    main(sys.argv[1:])
