"""Confinement: locations stored in a table never lead out of it. The tests cover hundreds of names in every place that
stores one, links on disk, and addresses of other machines. `hostile.py` defines the names and records which files are
opened."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import LanceError, StorageError, Table
from lance_core.datafiles import blob_locations
from lance_core.format._pb import table_pb2
from lance_core.storage.local import LocalStore
from lance_core.versions.location import locate
from tests.security.hostile import ForgedTable

ROOT = Path(__file__).parents[2]
ROWS = pa.table({"id": [1, 2, 3]})
EVERY = 5
"""Fraction of the names per field, one in this many; `python -m tests.security.hostile` tries all of them."""
CANARIES = {"aws_access_key_id": "CANARYKEYID", "aws_secret_access_key": "canary-secret", "token": "canary-token"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", ROWS, durable=False)


def test_no_stored_name_leads_out_of_the_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.security.hostile", str(tmp_path / "place"), str(EVERY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["found"] == []
    assert result["tried"] > 2_000


# Links


@pytest.mark.parametrize("path", ["data/x", "_versions/x", "_deletions/x", "x", "_lance_assets/intents/x.json"])
def test_nothing_is_written_or_removed_through_a_link(path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"theirs")
    store = LocalStore(tmp_path / "t")
    store.put("name", b"ours")
    top = Path(path).parts[0]
    if top == path:
        (tmp_path / "t" / path).symlink_to(outside / "x")
        store.put(path, b"ours")  # replaces the link
        assert not (tmp_path / "t" / path).is_symlink()
    else:
        (tmp_path / "t" / top).symlink_to(outside)
        uses = (lambda: store.put(path, b""), lambda: store.create(path, b""), lambda: store.delete(path))
        for use in (
            *uses,
            lambda: store.put_volatile(path, b""),
            lambda: store.ensure_durable([path]),
            lambda: store.list(top),
        ):
            with pytest.raises(StorageError, match="is a link out of"):
                use()
        store.remove_empty_directories(top)
        assert list(store.walk(top)) == []
    assert [(each.name, each.read_bytes()) for each in outside.iterdir()] == [("x", b"theirs")]


@pytest.mark.parametrize("directory", ["data", "_versions", "_transactions", "_deletions", "_refs", "_lance_assets"])
def test_cleanup_leaves_what_links_lead_to(directory: str, table: Table, tmp_path: Path) -> None:
    """Links to files, to directories and to nothing, below each directory that cleanup lists."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for name in ("a.lance", "deep/b.lance", "18446744073709551614.manifest"):
        (outside / name).write_bytes(b"theirs")
        os.utime(outside / name, (1, 1))
    table = table.append(ROWS).table.delete("id = 1").table
    table.tags.create("t")
    place = Path(table.uri, directory)
    place.mkdir(exist_ok=True)
    (place / "directory").symlink_to(outside)
    (place / "file.lance").symlink_to(outside / "a.lance")
    (place / "gone").symlink_to(outside / "gone")
    (place / "up").symlink_to(tmp_path)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    table.cleanup(older_than=timedelta(0), keep=1)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def test_a_pipe_is_no_file(table: Table) -> None:
    """Opening a pipe would wait for its other end forever."""
    path = Path(table.uri, table.manifest.path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LanceError, match="it is not a regular file"):
        Table.open(table.uri)


def test_a_link_in_place_of_a_tag_is_not_read(table: Table, tmp_path: Path) -> None:
    table.tags.create("t")
    path = Path(table.uri, "_refs/tags/t.json")
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(StorageError, match="is a link out of"):
        table.at(tag="t")


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "tables").symlink_to(tmp_path / "disk")
    table = Table.create(tmp_path / "tables" / "t", ROWS)
    table.append(ROWS).table.delete("id = 1").table.compact()
    Table.open(tmp_path / "disk" / "t").cleanup(older_than=timedelta(0), keep=1)
    assert Table.open(tmp_path / "tables" / "t").to_table().num_rows == 4


# Other machines


@contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """Listen on a port and record the first bytes of each connection."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1)
                    try:
                        heard.append(connection.recv(4096))
                        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    except OSError:
                        heard.append(b"")

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:{port}/t",
        "https://127.0.0.1:{port}/t",
        "s3://127.0.0.1:{port}/t",
        "s3://bucket/t",
        "gs://bucket/t",
        "az://container/t",
        "abfss://container@127.0.0.1/t",
        "file://127.0.0.1:{port}/t",
        "//127.0.0.1:{port}/t",
        "s3+ddb://bucket/t?ddbTableName=versions",
    ],
)
def test_a_manifest_sends_nobody_anywhere(place: str, table: Table) -> None:
    """Every client is configured with the listener as its store, so that it would receive any request."""
    with listener() as (port, heard):
        address = f"http://127.0.0.1:{port}"
        options = {"allow_http": "true", "endpoint": address, "google_base_url": address, "dynamodb_endpoint": address}

        def change(message: table_pb2.Manifest) -> None:
            message.base_paths.add(id=1, path=place.format(port=port), is_dataset_root=True)
            message.fragments[0].files[0].base_id = 1
            message.config["aws_endpoint"] = message.table_metadata["endpoint"] = address
            message.config["storage_options"] = f'{{"endpoint": "{address}"}}'
            message.config["lance_assets.manifest_store"] = f"dynamodb at {address}"

        ForgedTable(table, Path(table.uri)).forge_manifest(change)
        opened = Table.open(table.uri, storage_options={**options, **CANARIES})
        uses = (
            opened.to_table,
            lambda: opened.count_rows("id = 1"),
            lambda: opened.delete("id = 1"),
            lambda: opened.compact(),
            lambda: opened.blobs("id", [0]),
            lambda: opened.fsck().findings and opened.to_table(),
            lambda: opened.clone(f"{table.uri}-clone", shallow=False),
        )
        for use in uses:
            with pytest.raises(LanceError):
                use()
    assert heard == []


def test_a_blob_sends_nobody_anywhere(table: Table) -> None:
    with listener() as (port, heard):
        location = locate(table.uri, storage_options={"endpoint": f"http://127.0.0.1:{port}", "allow_http": "true"})
        for uri in (f"http://127.0.0.1:{port}/film", "s3://bucket/film", "az://container/film"):
            with pytest.raises(LanceError):
                location.resolve_external_blob(uri, None)
    assert heard == []
    assert not blob_locations.is_relative_path("../film")
