"""One client for each bucket and way to reach it, for as long as the process lives; a forked child makes its own, since
connections and the threads behind them do not survive a fork.
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

_KINDS: Mapping[str, Callable[[str, Settings], Bucket]] = {
    "s3": S3Bucket.open,
    "gs": GcsBucket.open,
    "az": AzureBucket.open,
    "abfss": AzureBucket.open,
}
_KEPT = 64
_opened: dict[tuple[int, str, Settings], Bucket] = {}
_one_at_a_time = threading.Lock()


def cached_client(authority: str, settings: Settings) -> Bucket:
    """`authority` is what a URI has between its scheme and its path."""
    key = (os.getpid(), authority, settings)
    found = _opened.get(key)
    if found is None:
        with _one_at_a_time:
            redact_in_logs(settings.secrets)
            found = _opened.get(key) or _KINDS[settings.scheme](authority, settings)
            if len(_opened) >= _KEPT:  # credentials that are renewed make a new one each time
                del _opened[next(iter(_opened))]
            _opened[key] = found
    return found


def _begin_anew() -> None:
    """A lock that another thread held at the fork would never be let go."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
