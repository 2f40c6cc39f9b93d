"""Sensor tick: an evaluation of a discovery sensor that finds nothing new."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import dagster as dg
import pytest

from lance_assets import lance_discovery, lance_table
from tests.lance_assets.instances import tick

_IDLE = "no new versions"
_TICKS_MAX = 50
_SECRET = "REQUEST_BUDGET_SECRET"


@contextmanager
def idle_tick(uris: Sequence[str], options: Mapping[str, str]) -> Iterator[Callable[[], object]]:
    """Record the versions of the tables by ticks of one sensor, and return one more tick."""
    with pytest.MonkeyPatch.context() as environment:
        # Dagster shows the configuration of resources, so that secrets are passed by the name of a variable.
        environment.setenv(_SECRET, options["aws_secret_access_key"])
        with _recorded(uris, {**options, "aws_secret_access_key": f"env:{_SECRET}"}) as last_tick:
            yield last_tick


@contextmanager
def _recorded(uris: Sequence[str], options: Mapping[str, str]) -> Iterator[Callable[[], object]]:
    declared = [
        lance_table(f"table_{number}", uri=uri, storage_options=options, discover=False)
        for number, uri in enumerate(uris)
    ]
    sensor = lance_discovery("lake", declared)
    with dg.DagsterInstance.ephemeral() as instance:
        cursor, message = tick(sensor, instance)
        for _ in range(_TICKS_MAX):
            if message == _IDLE:
                break
            cursor, message = tick(sensor, instance, cursor)
        assert message == _IDLE, message
        yield lambda: tick(sensor, instance, cursor)
