"""Tests, in the same layout as the packages: `tests/lance_core/x/test_y.py` tests `lance_core/x/y.py`."""
