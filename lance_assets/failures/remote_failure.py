"""Remote failure: the class and message of a core error that a process on another machine reported."""

from lance_core import LanceError


class RemoteFailure(Exception):
    """Error that a remote process reported. `error_translation.py` treats it like an error of this process."""

    def __init__(self, error_class: type[LanceError], message: str) -> None:
        super().__init__(f"{error_class.__name__}: {message}")
        self.error_class = error_class
        self.message = message
