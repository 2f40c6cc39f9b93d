"""What `make torture` prints of harnesses, and when it fails. They themselves are tried where they live."""

import importlib

import pytest

from tests.torture.__main__ import main
from tests.torture.harnesses import HARNESSES
from tests.torture.report import Report, table, together


def test_the_table() -> None:
    reports = [Report("one", 12_000, 3.21, (), {"calls": "5"}), Report("another", 1, 0.5, ("seed 7: lost",))]
    assert table(reports).splitlines() == [
        "harness        tried   seconds  found",
        "one           12,000       3.2      0",
        "another            1       0.5      1",
        "one: calls: 5",
        "FOUND by another: seed 7: lost",
    ]


def test_shares_together() -> None:
    shares = [Report("one", 2, 1.0, ("a",), {"n": "1,000", "x": "y"}), Report("one", 3, 1.0, ("b",), {"n": "1"})]
    assert together(shares, 7.5) == Report("one", 5, 7.5, ("a", "b"), {"n": "1,001", "x": "y"})


@pytest.mark.parametrize("name", HARNESSES)
def test_every_harness_has_its_sizes(name: str) -> None:
    module = importlib.import_module(f"tests.torture.{name}")
    assert callable(module.run)
    assert isinstance(module.PR, module.Size)
    assert isinstance(module.NIGHTLY, module.Size)
    if HARNESSES[name].shares > 1:
        assert len(module.shares(module.NIGHTLY, HARNESSES[name].shares)) == HARNESSES[name].shares


def test_a_name_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulations"])
    assert "there is no harness simulations; there are simulation, " in capsys.readouterr().err
