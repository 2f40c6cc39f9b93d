"""Tables of these tests are small: their work is spread all the same."""

import pytest

from lance_core.tasks import driver


@pytest.fixture(autouse=True)
def few_rows_are_worth_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_ROWS_WORTH_A_TASK", 1)
