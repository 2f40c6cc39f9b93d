"""Configuration of the task tests: work is distributed although the tables are small."""

import pytest

from lance_core.tasks import driver


@pytest.fixture(autouse=True)
def few_rows_are_worth_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ROWS_PER_TASK_MIN", 1)
