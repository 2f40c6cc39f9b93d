"""Errors of a worker that another try would not mend, on their way to the driver: there they are what they were."""

import json
import re

from lance_core import errors
from lance_core.errors import InvalidInput, LanceError

_RAISED = re.compile(r"^lance_core\.errors\.(InvalidInput|SchemaMismatch): (?P<message>.+)$", re.MULTILINE)


def encode_error(error: LanceError) -> str:
    told = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    return json.dumps({"kind": type(error).__name__, "message": str(error), "told": told})


def decode_error(text: str) -> LanceError:
    refusal = json.loads(text)
    kind = getattr(errors, refusal["kind"], InvalidInput)
    error: LanceError = kind.__new__(kind, refusal["message"])
    error.args = (refusal["message"],)
    for name, value in refusal["told"].items():
        setattr(error, name, value)
    return error


def error_in_traceback(text: str) -> InvalidInput | None:
    """Where a task has no place for a refusal among its rows, it raises it, and Spark tells of it as a text."""
    found = _RAISED.search(text)
    return None if found is None else InvalidInput(found["message"])
