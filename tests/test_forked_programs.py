"""Tests of the runner of forked programs."""

import pytest
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from tests import forked_programs


def test_java_ends_if_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[JavaGateway] = []

    def launch() -> JavaGateway:
        started.append(launch_gateway())
        return started[-1]

    monkeypatch.setattr(forked_programs, "launch_gateway", launch)
    with pytest.raises(FileNotFoundError), forked_programs.forked_programs("/no/such/interpreter"):
        pass
    assert [java.proc.poll() is None for java in started] == [False]
