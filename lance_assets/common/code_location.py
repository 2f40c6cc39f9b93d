"""Code location: the file and line of the user that an asset refers to.

    a write that calls a function   the function. `dg.with_source_code_references` reads the location of what an asset
                                    executes: a function of this library, which therefore gets the other's location
    any other asset                 its declaration, as a code reference: the call in Python, or the line in YAML

`find_declaration` finds a declaration, `locate_at` gives a function a location, and `code_reference` returns metadata.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TypeVar

import dagster as dg

_HAS_EXACT_LINES = sys.version_info >= (3, 13)
Function = TypeVar("Function", bound=Callable[..., object])
REFERENCES = "dagster/code_references"
"""Key of the references in the metadata of an asset."""
_LIBRARY = ("lance_assets.common.", "lance_assets.definitions.", "lance_assets.writes.", "dataclasses.")
_GENERATED = "<string>"
"""File name of methods that `dataclasses` generates."""


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Line of a file of the user."""

    file: str
    line: int

    @property
    def is_python(self) -> bool:
        """True if the file is Python code; a declaration can also be in YAML."""
        return self.file.endswith(".py")


class Located:
    """Base of classes whose objects know where the user has declared them."""

    __slots__ = ("declared_at",)
    declared_at: CodeLocation | None


_yaml: ContextVar[tuple[CodeLocation | None] | None] = ContextVar("lance_assets_yaml", default=None)
"""Location in the YAML file that is read; `None` in Python."""


@contextmanager
def declared_in_yaml(location: CodeLocation | None) -> Iterator[None]:
    """Make `find_declaration` return this location."""
    token = _yaml.set((location,))
    try:
        yield
    finally:
        _yaml.reset(token)


def find_declaration() -> CodeLocation | None:
    """Return the location of the call that declares an object: of the innermost caller outside of this library. It is
    `None` if that caller is in no file, such as a notebook."""
    if (in_yaml := _yaml.get()) is not None:
        return in_yaml[0]
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_of_library(frame.f_code.co_filename, frame.f_globals.get("__name__")):
        frame = frame.f_back
    file = os.path.abspath(frame.f_code.co_filename)
    return CodeLocation(file, frame.f_lineno) if os.path.isfile(file) else None


def find_function(target: object) -> CodeLocation | None:
    """Return the location of a function, also within a partial application, or of the `__call__` of an object. `None`
    without source, such as for `None` or a function of a notebook."""
    while isinstance(target, partial):
        target = target.func
    origin = inspect.unwrap(target) if callable(target) else None
    if not inspect.isroutine(origin) and not inspect.isclass(origin):
        origin = getattr(type(origin), "__call__", None)  # noqa: B004  # its location, not whether it can be called
    try:
        _lines, line = inspect.getsourcelines(origin)  # type: ignore[arg-type]
        file = inspect.getsourcefile(origin)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return None if file is None else CodeLocation(os.path.abspath(file), line)


def locate_at(location: CodeLocation | None, *, is_function: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that gives a function this location, which tracebacks then name, too; `None` changes nothing.

    Before Python 3.13, `inspect` takes the last function above a line for the line of a function. The location of
    anything but a function is therefore the start of its file there; its line is in `code_reference`. Each call of
    `dg.with_source_code_references` appends this location to the references that an asset has."""

    def decorate(function: Function) -> Function:
        if location is not None and isinstance(function, FunctionType) and (is_function or location.is_python):
            line = location.line if is_function or _HAS_EXACT_LINES else 1
            function.__code__ = function.__code__.replace(co_filename=location.file, co_firstlineno=line)
        return function

    return decorate


def code_reference(location: CodeLocation | None) -> Mapping[str, object]:
    """Return the metadata of an asset that leads to a location; none without one."""
    if location is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(file_path=location.file, line_number=location.line)
        return {REFERENCES: dg.CodeReferencesMetadataValue(code_references=[reference])}


def _is_of_library(file: str, module: object) -> bool:
    return file == _GENERATED or f"{module}.".startswith(_LIBRARY)
