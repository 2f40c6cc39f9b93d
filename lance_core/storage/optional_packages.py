"""Optional dependencies: packages that only some tables need, imported when the first such table is opened.

The client of an object store takes longer to import than this whole package, and need not be installed at all.
"""

import importlib
from types import ModuleType

from lance_core.errors import MissingDependency


def import_package(name: str, *, extra: str | None, needed_for: str) -> ModuleType:
    """Import a module, or raise a `MissingDependency` that names the extra to install. Without an extra, the package
    itself is named."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        requirement = package if extra is None else f"'lance-assets[{extra}]'"
        raise MissingDependency(
            f"{needed_for} needs the package {package}, which is not installed or does not load "
            f"({error}); install it with: pip install {requirement}"
        ) from error
