"""Object store emulators: S3 by `s3_emulator.py`, Azure by Azurite, and Google Cloud Storage by `gcs_server.py`, since
no packaged emulator of it honours conditions.

The module starts and stops the emulators on loopback, creates buckets in them, and returns the storage options that
reach them.
"""

import json
import os
import re
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from tests.lance_core.storage.buckets import SECRET, Bucket, s3_options
from tests.lance_core.storage.gcs_server import GcsEmulator, create_server
from tests.lance_core.storage.s3_process import s3_process

AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The published key of every Azure emulator."""
TOOLS = Path(__file__).parents[3] / ".tools"
AZURITE = TOOLS / "azurite/node_modules/.bin/azurite-blob"


@dataclass(frozen=True, slots=True)
class Server:
    endpoint: str
    create_bucket: Callable[[str, str], Bucket]
    """Creates a bucket from its name and the address through which clients reach it."""

    def bucket(self, through: str | None = None) -> Bucket:
        return self.create_bucket(f"bucket-{uuid.uuid4().hex[:12]}", through or self.endpoint)


@contextmanager
def s3() -> Iterator[Server]:
    with s3_process() as started:

        def make(name: str, through: str) -> Bucket:
            started.create_bucket(name)
            return Bucket(f"s3://{name}", s3_options(through))

        yield Server(started.endpoint, make)


@contextmanager
def gcs(stored: GcsEmulator | None = None) -> Iterator[Server]:
    emulator = stored or GcsEmulator()
    server = create_server(emulator)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def make(name: str, through: str) -> Bucket:
        emulator.buckets[name] = {}
        return gcs_bucket(name, through)

    try:
        yield Server(f"http://127.0.0.1:{server.server_address[1]}", make)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gcs_bucket(name: str, endpoint: str) -> Bucket:
    """Return a bucket of an emulator of Google Cloud Storage as it is reached at this address."""
    key = {"gcs_base_url": endpoint, "disable_oauth": True, "private_key": SECRET}
    key |= {"private_key_id": "", "client_email": ""}
    return Bucket(f"gs://{name}", {"google_service_account_key": json.dumps(key), "allow_http": "true"})


@contextmanager
def azure() -> Iterator[Server]:
    if not AZURITE.exists():
        raise RuntimeError(f"{AZURITE} does not exist; `make test` installs it")
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    with tempfile.TemporaryDirectory() as directory:
        command = [str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", "0", *options]
        # The installed Node.js or else the one that `make test` took from a wheel.
        environment = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), str(TOOLS / "node/bin")])}
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        try:
            matches = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
            endpoint = next(match[1] for match in matches if match) + f"/{AZURE_ACCOUNT}"
            yield Server(endpoint, lambda name, through: _container(endpoint, name, through))
        finally:
            process.kill()  # it ends itself only once it has answered all requests
            process.wait()
            process.stdout.close()


def _container(endpoint: str, name: str, through: str) -> Bucket:
    keys = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
    with BlobServiceClient(endpoint, credential=keys) as client:
        client.create_container(name)
    options = {
        "azure_storage_account_name": AZURE_ACCOUNT,
        "azure_storage_account_key": AZURE_KEY,
        "azure_storage_endpoint": through,
        "allow_http": "true",
    }
    return Bucket(f"az://{name}", options)
