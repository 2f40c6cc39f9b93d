"""Packages that only some tables need, loaded when the first of those is opened: an object store's client costs more
to load than all of this package, and need not be installed at all.
"""

import importlib
from types import ModuleType

from lance_core.errors import MissingDependency


def package(name: str, *, extra: str, needed_for: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"{needed_for} needs the package {name.partition('.')[0]}, which is not installed or does not load "
            f"({error}); install it with: pip install 'lance-assets[{extra}]'"
        ) from error
