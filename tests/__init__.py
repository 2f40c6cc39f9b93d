"""The tests mirror the packages: `tests/lance_core/x/test_y.py` checks what `lance_core/x/y.py` does."""
