"""The version of this package, as manifests and workers record it."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("lance-assets")
    except PackageNotFoundError:
        return "0.0.0"


PACKAGE_VERSION = _installed()
LIBRARY_VERSION = ".".join(PACKAGE_VERSION.split(".")[:3])
"""Only major, minor and patch: other readers parse it."""
