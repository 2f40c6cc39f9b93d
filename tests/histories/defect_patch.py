"""Defect patch: a function that plants one defect of the product into a monkeypatch."""

from collections.abc import Callable

import pytest

DefectPatch = Callable[[pytest.MonkeyPatch], None]
