"""Buckets: requests to object store services by key, one module per service.

`bucket.py` has the interface, `Bucket`. `s3.py`, `gcs.py` and `azure.py` implement it, and `client_cache.py` caches
the clients of a process. An implementation sends each request once, without retries, and translates the errors of its
client library into a `RequestError`. Buckets know no root directories and no retry policy; `storage/object_store.py`
has those.
"""
