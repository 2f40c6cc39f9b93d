"""Real threads on a real directory, and a cleaner that never rests; `make torture` does it for longer."""

from pathlib import Path

from tests.histories.concurrent_cleanup import beside_a_cleaner


def test_nothing_is_lost_beside_a_cleaner(tmp_path: Path) -> None:
    met = beside_a_cleaner(str(tmp_path / "t"), seconds=5)
    assert not met.wrong
    assert met.acknowledged
    assert met.cleanups
