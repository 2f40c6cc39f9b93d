"""Where a table is: its URI, the store of its metadata and the codec of its data files, opened together."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lance_core.data.codec import DataCodec
from lance_core.data.lance_codec import LanceCodec
from lance_core.storage.opening import open_store
from lance_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class Location:
    uri: str
    """Fit for messages: without credentials."""
    store: Store
    codec: DataCodec


def locate(
    uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None, durable: bool = True
) -> Location:
    store = open_store(uri, storage_options=storage_options, durable=durable)
    return Location(uri=store.description, store=store, codec=LanceCodec(store))
