"""Commits: the write protocol, the commit loop, group commit, fencing, audits and detached versions.

Nothing in here knows what an operation means; `transactions/` judges, rebases and applies it. Start with `loop.py`.
"""
