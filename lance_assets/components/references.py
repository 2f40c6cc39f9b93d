"""What YAML names by `module.path:name`: functions above all, and whatever else only Python can say.

A module that begins with a dot is beside the YAML file, or below it: `.rows:new_orders`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from lance_assets.components.source_position import SourcePosition
from lance_assets.writes.write_list import did_you_mean


def resolve_function(raw: object, position: SourcePosition) -> Callable[..., Any]:
    found = position.render(raw)
    if isinstance(found, str):
        found = resolve_reference(found, position)
    if not callable(found):
        raise position.error(f"{raw!r} is a {type(found).__name__}, and no function")
    return found


def resolve_reference(text: str, position: SourcePosition) -> object:
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise position.error(
            f"{text!r} names nothing in Python; write module.path:name, or .module:name beside this file"
        )
    if module_name.startswith("."):
        if position.module is None:
            raise position.error(f"{text!r} is beside a file that is in no package; write module.path:name")
        module_name = f"{position.module}{module_name}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise position.error(f"the module {module_name} cannot be imported: {error}") from error
        raise position.error(f"there is no module {module_name}: Python finds no {error.name}") from error
    except Exception as error:  # whatever a module of the user's raises while it is imported
        raise position.error(f"the module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise position.error(f"the module {module_name} has no {name!r}{did_you_mean(name, vars(module))}")
    return getattr(module, name)
