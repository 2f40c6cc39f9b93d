"""References: Python objects that YAML names as `module.path:name`, mostly functions.

A module that begins with a dot is relative to the folder of the YAML file: `.rows:new_orders`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from lance_assets.components.source_position import SourcePosition
from lance_assets.writes.write_list import did_you_mean


def resolve_function(raw: object, position: SourcePosition) -> Callable[..., Any]:
    """Return the function that a reference or a template names."""
    value = position.render(raw)
    if isinstance(value, str):
        value = resolve_reference(value, position)
    if not callable(value):
        raise position.error(f"{raw!r} has type {type(value).__name__}; it must be a function")
    return value


def resolve_reference(text: str, position: SourcePosition) -> object:
    """Import and return the object that `module.path:name` names."""
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise position.error(
            f"{text!r} is not a Python reference; write module.path:name, or .module:name relative to this file"
        )
    if module_name.startswith("."):
        if position.module is None:
            raise position.error(f"{text!r} is relative, and this file is in no package; write module.path:name")
        module_name = f"{position.module}{module_name}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise position.error(f"the module {module_name} cannot be imported: {error}") from error
        raise position.error(f"there is no module {module_name}: Python cannot find {error.name}") from error
    except Exception as error:  # a module of the user may raise anything while it is imported
        raise position.error(f"the module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise position.error(f"the module {module_name} has no {name!r}{did_you_mean(name, vars(module))}")
    return getattr(module, name)
