"""Code location: gives a function of this library the source location of the user's function that it calls.

`dg.with_source_code_references` reads the file and line of the function that an asset executes. That function belongs
to this library, so it gets the location of the user's function. Tracebacks then name that location, too.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def locate_at(target: object) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the source location of `target`. A target without source, such as
    `None` or a function of a notebook, changes nothing."""

    def decorate(function: Function) -> Function:
        origin = inspect.unwrap(target) if callable(target) else None
        try:
            _lines, line = inspect.getsourcelines(origin)  # type: ignore[arg-type]
            file = inspect.getsourcefile(origin)  # type: ignore[arg-type]
        except (OSError, TypeError):
            return function
        code = getattr(function, "__code__", None)
        if file is not None and code is not None:
            function.__code__ = code.replace(co_filename=file, co_firstlineno=line)
        return function

    return decorate
