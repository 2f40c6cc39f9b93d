"""Remote errors: carries an error that no retry can fix from a worker to the driver, which raises it unchanged."""

import json
import re

from lance_core import errors
from lance_core.errors import InvalidInput, LanceError

_RAISED = re.compile(r"^lance_core\.errors\.(InvalidInput|SchemaMismatch): (?P<message>.+)$", re.MULTILINE)


def encode_error(error: LanceError) -> str:
    attributes = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    return json.dumps({"kind": type(error).__name__, "message": str(error), "told": attributes})


def decode_error(text: str) -> LanceError:
    fields = json.loads(text)
    error_type = getattr(errors, fields["kind"], InvalidInput)
    error: LanceError = error_type.__new__(error_type, fields["message"])
    error.args = (fields["message"],)
    for name, value in fields["told"].items():
        setattr(error, name, value)
    return error


def error_in_traceback(text: str) -> InvalidInput | None:
    """Return the error that a task raised, from the traceback that Spark reports as text; `None` if there is none in
    it. A task raises an error if its output rows have no column for one."""
    match = _RAISED.search(text)
    return None if match is None else InvalidInput(match["message"])
