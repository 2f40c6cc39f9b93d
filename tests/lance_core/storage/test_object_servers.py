"""Emulators of object stores: they keep the promises of the services on which commits rest."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from moto.s3.models import S3Backend

from lance_core.storage.factory import open_store
from lance_core.storage.store import Put
from tests.lance_core.storage.object_servers import s3


def test_one_of_two_concurrent_conditional_puts_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both requests look for the object before either of them stores it, if the emulator lets them."""
    find_object, both_looked = S3Backend.get_object, threading.Barrier(2)

    def find_and_wait(backend: S3Backend, bucket: str, key: str, *arguments: Any, **named: Any) -> Any:
        found = find_object(backend, bucket, key, *arguments, **named)
        if key.endswith("contended"):
            with suppress(threading.BrokenBarrierError):
                both_looked.wait(timeout=0.3)
        return found

    with s3() as server, ThreadPoolExecutor(2) as pool:
        bucket = server.bucket()
        store = open_store(bucket.uri, storage_options=bucket.options)
        store.create("first", b"")  # the store learns whether conditions are honoured
        monkeypatch.setattr(S3Backend, "get_object", find_and_wait)
        answers = list(pool.map(lambda content: store.create("contended", content), (b"a", b"b")))
    assert sorted(answer.name for answer in answers) == [Put.CREATED.name, Put.EXISTS.name]
