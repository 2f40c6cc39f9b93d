"""Workload `object_store_azure`: the operations of `object_store` on the emulator of Azure, behind a proxy that answers
each request after 30 ms.

Cleanups are left out, since objects in the emulator are always young, and so are ticks of sensors, which need the
secrets of S3, and the commit of 10,000 files, which Azurite takes minutes to store.
"""

from benchmarks.workloads.object_store import ObjectStore
from tests.lance_core.storage.proxied_stores import azure_behind_proxy

WORKLOAD = ObjectStore(
    "object_store_azure",
    "the operations of object_store on the emulator of Azure",
    azure_behind_proxy,
    excluded=("cleanup", "sensor tick", "commit 10,000"),
    operations_per_server=1,  # Azurite becomes slow once many objects have been removed
)
