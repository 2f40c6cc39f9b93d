"""Object stores as their clients see them: requests for whole keys, one module for each kind.

What lives here: `Bucket` (bucket.py), its three kinds `s3.py`, `gcs.py` and `azure.py`, and `client_cache.py`, which
keeps one of each for a process. Each sends one request at a time, never repeats it, and turns its client's errors into
`Trouble`. What never does: roots, tables, patience; `storage/object_store.py` has those.
"""
