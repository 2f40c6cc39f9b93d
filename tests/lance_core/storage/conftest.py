"""Object store emulators: one per service and session, started when the first test needs it."""

from collections.abc import Iterator

import pytest

from tests.lance_core.storage.object_servers import Server, azure, gcs, s3


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
    """Run the test once for each service."""
    selected: Server = request.getfixturevalue(
        {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[request.param]
    )
    return selected
