"""Bytes at a path: one narrow trait, and the stores that keep it.

What lives here: `Store` (in `store.py`), `local.py`, `memory.py`, `object_store.py` for all object stores, with one
module a kind in `buckets/`, and `factory.py`, which chooses one for a URI. What never does: the word
manifest, versions, retries that could hide an answer.
"""
