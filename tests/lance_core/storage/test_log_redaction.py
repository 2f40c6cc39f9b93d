"""What the filter on the loggers of others does to a record, and that it never gets into their way."""

import io
import logging
from collections.abc import Iterator

import pytest

from lance_core.storage.log_redaction import redact_in_logs

SECRET = "quiet-canary-1"


class Unprintable:
    def __str__(self) -> str:
        raise OSError(SECRET)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)  # where logging tells of records that it cannot write
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("urllib3.connectionpool")
    logger.addHandler(handler)
    redact_in_logs([SECRET])
    yield written
    logger.removeHandler(handler)


@pytest.mark.parametrize("arguments", [(SECRET,), (1, 2, SECRET), (Unprintable(),), ({"a": SECRET},)])
def test_a_call_that_is_wrong_is_no_error_of_its_caller(said: io.StringIO, arguments: tuple[object, ...]) -> None:
    message = "%d requests" if not isinstance(arguments[0], Unprintable) else "%s"
    logging.getLogger("urllib3.connectionpool").warning(message, *arguments)
    assert "message omitted" in said.getvalue()
    assert SECRET not in said.getvalue()


def test_a_secret_in_an_exception_is_masked_too(said: io.StringIO) -> None:
    logger = logging.getLogger("urllib3.connectionpool")
    try:
        raise ValueError(f"token={SECRET}")
    except ValueError:
        logger.exception("it failed with %s", SECRET)
    logger.error("and so did %s", "another", exc_info=True)
    assert "ValueError: token=***" in said.getvalue()
    assert "it failed with ***" in said.getvalue()
    assert SECRET not in said.getvalue()
