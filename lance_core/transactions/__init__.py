"""Transaction rules, as pure functions: whether a change conflicts with those committed before it (`conflicts.py`),
how it is rebased onto them (`rebase.py`), what the table is after it (`apply.py`), and what must hold between any two
versions (`invariants.py`). The commit loop in `commit/loop.py` is their only production caller.
"""
