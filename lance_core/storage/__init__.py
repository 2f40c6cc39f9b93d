"""Storage: bytes at a path, behind one narrow interface.

`store.py` has the interface, `Store`. `local.py`, `memory.py` and `object_store.py` implement it; the last one uses a
module of `buckets/` for each object store service. `factory.py` opens the store for a URI. Stores know nothing of
manifests and versions (except `manifest_stores/`, which reserves versions), and never retry a request whose first
answer the retry could hide.
"""
