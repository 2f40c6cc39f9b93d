"""Package version: reads the installed release, which manifests and workers record."""

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("lance-assets")
    except PackageNotFoundError:
        return "0.0.0"


PACKAGE_VERSION = _installed_version()
LIBRARY_VERSION = ".".join(PACKAGE_VERSION.split(".")[:3])
"""Major, minor and patch alone, because other readers parse the library version in a manifest."""
