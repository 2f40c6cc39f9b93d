"""Tests of threads that write to a real directory during a continuous cleanup; `make torture` runs them for longer."""

from pathlib import Path

from tests.histories.concurrent_cleanup import run_concurrent_cleanup


def test_concurrent_cleanup_loses_nothing(tmp_path: Path) -> None:
    result = run_concurrent_cleanup(str(tmp_path / "t"), seconds=2)
    assert not result.problems
    assert result.acknowledged
    assert result.cleanup_count
