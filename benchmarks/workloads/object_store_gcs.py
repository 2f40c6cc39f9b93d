"""Workload `object_store_gcs`: the operations of `object_store` on the emulator of Google Cloud Storage, behind a proxy
that answers each request after 30 ms.

Cleanups are left out, since objects in the emulator are always young, and ticks of sensors, which take the secrets of
S3.
"""

from benchmarks.workloads.object_store import ObjectStore
from tests.lance_core.storage.proxied_stores import gcs_behind_proxy

WORKLOAD = ObjectStore(
    "object_store_gcs",
    "the operations of object_store on the emulator of Google Cloud Storage",
    gcs_behind_proxy,
    excluded=("cleanup", "sensor tick"),
)
