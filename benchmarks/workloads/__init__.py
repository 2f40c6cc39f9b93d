"""The workloads: one file each, whose name is the workload's and which holds it as `WORKLOAD`.

A file is imported when it is asked for, since one of them starts Spark.
"""

import pkgutil
from importlib import import_module

from benchmarks.harness import Workload


def names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Workload:
    workload: Workload = import_module(f"{__name__}.{name}").WORKLOAD
    assert workload.name == name, f"workload {workload.name} lives in {name}.py"
    return workload
