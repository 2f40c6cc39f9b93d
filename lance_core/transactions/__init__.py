"""The rules of change, as pure functions: may a change stand beside those that were first (`conflicts.py`),
how it is altered to fit (`rebase.py`), what the table is after it (`apply.py`), and what must hold between
any two versions (`invariants.py`). `commit.py`, one floor up, is the only one who calls them for real.
"""
