"""Commits: changes, the write protocol, the commit loop, group commit, fencing, audits and detached versions.

No module of this package knows what an operation means: `transactions/` judges, rebases and applies it. Start with
`write_protocol.py`, which runs every write, and `loop.py`, which commits it.
"""
