"""Fork server of the demo: runs the demo in processes that die at a crash point. `test_demo_crashes.py` starts it.

One process imports everything and forks a child for each request on stdin, so that a crash costs a fork and not a
minute of imports. A child runs the real demo, records its crash points (`crash_points.py`), and kills itself with
SIGKILL at the requested one.
"""

import json
import os
import sys
from pathlib import Path

import dagster as dg

from lance_assets.definitions import lance_table  # noqa: F401 - loaded before the fork
from lance_assets.resources import spark  # noqa: F401 - loaded before the fork
from tests.lance_assets.crash_points import CrashPointRecorder

ROWS_A_DAY = 1000


def run_demo(request: dict[str, str | None]) -> None:
    root = Path(str(request["root"]))
    os.environ["LANCE_ASSETS_DEMO"] = str(root)
    from lance_assets.demo import definitions, walkthrough, workspace  # the modules read the variable at import

    definitions.ORDERS_A_DAY = ROWS_A_DAY
    one_day = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-02")
    setattr(walkthrough, "days", one_day)  # noqa: B010 - the module imports it
    CrashPointRecorder(root / "crash_points", request["kill_at"]).install()
    walkthrough.run_walkthrough(workspace.demo_workspace(), print)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        Path(request["root"]).mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            log = os.open(Path(request["root"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run_demo(request)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
