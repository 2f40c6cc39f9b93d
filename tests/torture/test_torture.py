"""Tests of the output and the exit code of `make torture`. The harnesses are tested in the packages of their
histories."""

import pytest

from tests.torture.__main__ import main
from tests.torture.harnesses import HARNESSES, import_harness
from tests.torture.report import Report, format_table, merge_reports


def test_the_table() -> None:
    reports = [Report("one", 12_000, 3.21, (), {"calls": "5"}), Report("another", 1, 0.5, ("seed 7: lost",))]
    assert format_table(reports).splitlines() == [
        "harness        cases   seconds  failed",
        "one           12,000       3.2       0",
        "another            1       0.5       1",
        "one: calls: 5",
        "FAILURE in another: seed 7: lost",
    ]


def test_reports_of_splits_are_merged() -> None:
    splits = [Report("one", 2, 1.0, ("a",), {"n": "1,000", "x": "y"}), Report("one", 3, 1.0, ("b",), {"n": "1"})]
    assert merge_reports(splits, 7.5) == Report("one", 5, 7.5, ("a", "b"), {"n": "1,001", "x": "y"})


@pytest.mark.parametrize("name", HARNESSES)
def test_every_harness_has_its_sizes(name: str) -> None:
    module = import_harness(name)
    assert callable(module.run)
    assert isinstance(module.PR, module.Size)
    assert isinstance(module.NIGHTLY, module.Size)
    if HARNESSES[name].splits > 1:
        assert len(module.split(module.NIGHTLY, HARNESSES[name].splits)) == HARNESSES[name].splits


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulations"])
    assert "unknown harness simulations; choose from simulation, " in capsys.readouterr().err
