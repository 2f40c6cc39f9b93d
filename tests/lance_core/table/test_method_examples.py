"""Every public method of `Table` has an example in its docstring, and the examples run.

An example finds a table of three rows under the name `table`, an empty directory under `directory`, and `Table`, `pa`
and `pc`. Each example has a table of its own.
"""

import doctest
import inspect
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import Table

NEEDS_TORCH = frozenset({"to_torch"})
"""Methods whose examples run in the environment of `make torch`."""


def public_methods() -> dict[str, str]:
    """Return the docstrings of the public methods by name."""
    found = {}
    for name in dir(Table):
        attribute = inspect.getattr_static(Table, name)
        if isinstance(attribute, classmethod | staticmethod):
            attribute = attribute.__func__
        if not name.startswith("_") and inspect.isfunction(attribute):
            found[name] = inspect.getdoc(attribute) or ""
    return found


METHODS = public_methods()


def example_names(directory: Path) -> Mapping[str, object]:
    """Return what an example can use."""
    rows = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "city": ["Oslo", "Lima", "Pune"],
        "price": [10.0, 20.0, 30.0],
        "vec": pa.array([[0, 0], [1, 0], [0, 2]], pa.list_(pa.float32(), 2)),
    }
    table = Table.create(str(directory / "orders"), pa.table(rows), durable=False)
    return {"Table": Table, "pa": pa, "pc": pc, "table": table, "directory": str(directory)}


def run_example(name: str, directory: Path) -> int:
    """Run the example of a method, and return the number of its statements."""
    example = doctest.DocTestParser().get_doctest(METHODS[name], dict(example_names(directory)), name, None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not results.failed, "".join(report)
    return results.attempted


def test_a_method_without_an_example_is_noticed() -> None:
    assert len(METHODS) > 40
    assert METHODS.keys() >= NEEDS_TORCH
    assert [name for name, text in METHODS.items() if ">>> " not in text] == []


@pytest.mark.parametrize("name", sorted(METHODS.keys() - NEEDS_TORCH))
def test_the_example_of_a_method_runs(name: str, tmp_path: Path) -> None:
    assert run_example(name, tmp_path) >= 1
