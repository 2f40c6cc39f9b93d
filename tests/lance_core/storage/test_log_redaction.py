"""Log redaction: how the filter changes records of other libraries, and that it never fails their loggers."""

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
def log_output(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)  # where logging reports records that it cannot write
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("urllib3.connectionpool")
    logger.addHandler(handler)
    redact_in_logs([SECRET])
    yield stream
    logger.removeHandler(handler)


@pytest.mark.parametrize("arguments", [(SECRET,), (1, 2, SECRET), (Unprintable(),), ({"a": SECRET},)])
def test_a_wrong_logging_call_does_not_raise(log_output: io.StringIO, arguments: tuple[object, ...]) -> None:
    message = "%d requests" if not isinstance(arguments[0], Unprintable) else "%s"
    logging.getLogger("urllib3.connectionpool").warning(message, *arguments)
    assert "message omitted" in log_output.getvalue()
    assert SECRET not in log_output.getvalue()


def test_a_secret_in_an_exception_is_masked_too(log_output: io.StringIO) -> None:
    logger = logging.getLogger("urllib3.connectionpool")
    try:
        raise ValueError(f"token={SECRET}")
    except ValueError:
        logger.exception("it failed with %s", SECRET)
    logger.error("and so did %s", "another", exc_info=True)
    assert "ValueError: token=***" in log_output.getvalue()
    assert "it failed with ***" in log_output.getvalue()
    assert SECRET not in log_output.getvalue()
