"""Run worker: one run of the project's job `load`, or a re-execution of a failed run. `test_run_crashes.py` starts it.

python -m tests.lance_assets.run_worker [id of the failed run]
"""

import os
import sys

import dagster as dg

from tests.lance_assets.project import load_job


def main() -> None:
    with dg.DagsterInstance.get() as instance:
        failed_run = sys.argv[1] if len(sys.argv) > 1 else None
        options = dg.ReexecutionOptions(parent_run_id=failed_run) if failed_run else None
        result = dg.execute_job(dg.reconstructable(load_job), instance=instance, reexecution_options=options)
        sys.stdout.flush()
        os._exit(0 if result.success else 3)


if __name__ == "__main__":
    main()
