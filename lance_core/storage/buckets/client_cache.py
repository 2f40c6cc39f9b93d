"""Client cache: one client per process, bucket and settings.

A forked child creates its own clients, because connections and their threads do not survive a fork.
"""

import os
import threading
from collections.abc import Callable, Mapping

from lance_core.storage.buckets.azure import AzureBucket
from lance_core.storage.buckets.bucket import Bucket
from lance_core.storage.buckets.gcs import GcsBucket
from lance_core.storage.buckets.s3 import S3Bucket
from lance_core.storage.log_redaction import redact_in_logs
from lance_core.storage.options import Settings

_BUCKET_TYPES: Mapping[str, Callable[[str, Settings], Bucket]] = {
    "s3": S3Bucket.open,
    "gs": GcsBucket.open,
    "az": AzureBucket.open,
    "abfss": AzureBucket.open,
}
_CACHE_SIZE = 64
_clients: dict[tuple[int, str, Settings], Bucket] = {}
_clients_lock = threading.Lock()


def cached_client(authority: str, settings: Settings) -> Bucket:
    """Return the client for a bucket. `authority` is the part of a URI between its scheme and its path."""
    key = (os.getpid(), authority, settings)
    client = _clients.get(key)
    if client is None:
        with _clients_lock:
            redact_in_logs(settings.secrets)
            client = _clients.get(key) or _BUCKET_TYPES[settings.scheme](authority, settings)
            if len(_clients) >= _CACHE_SIZE:  # renewed credentials need a new client each time
                del _clients[next(iter(_clients))]
            _clients[key] = client
    return client


def _reset_lock_after_fork() -> None:
    """Replace the lock: if another thread held it during the fork, it would stay locked in the child."""
    global _clients_lock
    _clients_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)
