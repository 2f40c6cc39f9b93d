"""Bytes at a path: one narrow trait, and the stores that keep it.

What lives here: `Store` (seven calls, in `store.py`), `local.py`, `memory.py`, and `opening.py`, which chooses
one for a URI. What never does: the word manifest, versions, retries that could hide an answer.
"""
