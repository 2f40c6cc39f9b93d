"""Proxied stores: the emulators of Azure and Google Cloud Storage behind a latency proxy, which counts requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from tests.lance_core.storage import object_servers
from tests.lance_core.storage.buckets import Bucket
from tests.lance_core.storage.counting_process import CountingProcess, server_process
from tests.lance_core.storage.gcs_server import BUCKET


@dataclass(frozen=True, slots=True)
class ProxiedStore(CountingProcess):
    bucket: Bucket
    """Bucket as it is reached through the proxy."""
    direct: Bucket
    """The same bucket without the proxy."""

    def load(self, directory: Path, prefix: str, age: timedelta = timedelta(0)) -> None:
        store = self._open(prefix)
        for path in directory.rglob("*"):
            if path.is_file():
                store.put(str(path.relative_to(directory)), path.read_bytes())

    def remove(self, prefix: str) -> None:
        store = self._open(prefix)
        store.delete_all([found.path for found in store.walk("")])

    def _open(self, prefix: str) -> ObjectStore:
        store = open_store(f"{self.direct.uri}/{prefix}", storage_options=self.direct.options)
        assert isinstance(store, ObjectStore)
        return store


@contextmanager
def azure_behind_proxy() -> Iterator[ProxiedStore]:
    with object_servers.azure() as server, _proxy(server.endpoint) as through:
        direct = server.bucket()
        options = {**direct.options, "azure_storage_endpoint": f"{through}{urlsplit(server.endpoint).path}"}
        yield ProxiedStore(through, Bucket(direct.uri, options), direct)


@contextmanager
def gcs_behind_proxy() -> Iterator[ProxiedStore]:
    with server_process("tests.lance_core.storage.gcs_server") as endpoint, _proxy(endpoint) as through:
        buckets = (object_servers.gcs_bucket(BUCKET, each) for each in (through, endpoint))
        yield ProxiedStore(through, *buckets)


@contextmanager
def _proxy(endpoint: str) -> Iterator[str]:
    address = urlsplit(endpoint)
    with server_process("tests.lance_core.storage.latency_proxy", [f"{address.scheme}://{address.netloc}"]) as through:
        yield through
