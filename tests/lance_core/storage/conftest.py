"""Emulators that all tests of this room share: each is started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from tests.lance_core.storage.servers import Server, azure, gcs, s3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    with gcs() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Server]:
    with azure() as server:
        yield server


@pytest.fixture(params=["s3", "gs", "az"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each kind in turn."""
    found: Server = request.getfixturevalue(
        {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[request.param]
    )
    return found
