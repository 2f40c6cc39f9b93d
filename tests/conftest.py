"""Two workers share the suite. A file's tests stay together, and so do all tests that share a Spark session or servers,
so that each of those is started once."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

collect_ignore = [] if os.environ.get("UI_TESTS") else ["ui"]
"""They need a browser, and are run by `make test-ui`."""

_HERE = Path(__file__).parent
_TOGETHER = ("lance_assets", "clusters", "lance_core/storage/manifest_stores", "lance_core/storage")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(_HERE).as_posix()
        group = next((top for top in _TOGETHER if place.startswith(f"{top}/")), place)
        item.add_marker(pytest.mark.xdist_group(group))
