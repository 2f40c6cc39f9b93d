"""Transaction rules, as pure functions: they detect conflicts of a change with those committed before it
(`conflicts.py`), rebase it onto them (`rebase.py`), compute the manifest after it (`apply.py`), and check the
invariants of consecutive versions (`invariants.py`). The commit loop in `commit/loop.py` is their only production
caller.
"""
