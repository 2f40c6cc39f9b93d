"""Runs the demo in processes that die at a chosen step. Not a test: `test_demo_crashes.py` drives it.

One process has everything imported and forks a child for each order it reads on stdin, so that a death costs a fork
and not a minute of imports. A child runs the real demo; around each call that leaves a trace outside the process it
writes the call's name on a tape (`crash_points.py`), and kills itself, with SIGKILL, where it was told to.
"""

import json
import os
import sys
from pathlib import Path

import dagster as dg

from lance_assets.definitions import lance_table  # noqa: F401 - loaded before the fork
from lance_assets.resources import spark  # noqa: F401 - loaded before the fork
from tests.lance_assets.crash_points import Tape

ROWS_A_DAY = 1000


def run_demo(order: dict[str, str | None]) -> None:
    root = Path(str(order["root"]))
    os.environ["LANCE_ASSETS_DEMO"] = str(root)
    from lance_assets.demo import definitions, walkthrough, workspace  # they read the variable when they are loaded

    definitions.ORDERS_A_DAY = ROWS_A_DAY
    one_day = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-02")
    setattr(walkthrough, "days", one_day)  # noqa: B010 - the module imports it
    tape = Tape(root / "tape", order["kill_at"])
    tape.run()
    walkthrough.run_walkthrough(workspace.demo_workspace(), print)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        Path(order["root"]).mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            log = os.open(Path(order["root"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run_demo(order)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
