"""Registry of workloads: each module of this package defines one workload of the same name as `WORKLOAD`.

A module is imported only when its workload is loaded, because some of them start Spark.
"""

import pkgutil
from importlib import import_module

from benchmarks.harness import Workload


def names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Workload:
    workload: Workload = import_module(f"{__name__}.{name}").WORKLOAD
    assert workload.name == name, f"workload {workload.name!r} is defined in {name}.py; the names must be equal"
    return workload
