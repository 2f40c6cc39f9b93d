"""Test distribution over two workers. The tests of a file run on one worker, and so do all tests that share a Spark
session or servers, so that each of those starts once."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

collect_ignore = [
    *([] if os.environ.get("UI_TESTS") else ["ui"]),
    *([] if os.environ.get("PROOFS") == "all" else ["lance_assets/test_deployment.py"]),
]
"""The UI tests need a browser and run with `make test-ui`, the tests of a deployment with `make dagster-proofs`."""

_HERE = Path(__file__).parent
_SHARED_GROUPS = ("lance_assets", "clusters", "lance_core/storage/manifest_stores", "lance_core/storage")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(_HERE).as_posix()
        group = next((top for top in _SHARED_GROUPS if place.startswith(f"{top}/")), place)
        item.add_marker(pytest.mark.xdist_group(group))
