"""Tests of `lance_core/commit/openlineage.py`: an event of each committed version reaches the configured transport, and
no commit fails or waits for one."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from lance_core import Table
from lance_core.commit import openlineage
from lance_core.tasks.views import refresh_view

CANARY = "canary-51f7"
_DATASET = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string", "minLength": 1},
        "name": {"type": "string", "minLength": 1},
        "facets": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"_producer": {"format": "uri"}, "_schemaURL": {"format": "uri"}},
                "required": ["_producer", "_schemaURL"],
            },
        },
    },
    "required": ["namespace", "name"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "eventTime": {"type": "string", "format": "date-time"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"type": "string", "format": "uri"},
        "run": {
            "type": "object",
            "properties": {"runId": {"type": "string", "format": "uuid"}},
            "required": ["runId"],
        },
        "job": {
            "type": "object",
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}},
            "required": ["namespace", "name"],
        },
        "inputs": {"type": "array", "items": _DATASET},
        "outputs": {"type": "array", "items": _DATASET},
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
}
"""Rules of the OpenLineage specification 2-0-2 for a run event."""


@pytest.fixture
def log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File to which the transport of the library appends the events; the sender starts anew."""
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv(openlineage.SWITCH, "1")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    openlineage.reset()
    yield file
    assert openlineage.flush()
    openlineage.reset()


def events(file: Path) -> list[dict[str, Any]]:
    assert openlineage.flush()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for event in found:
        jsonschema.validate(event, SCHEMA, format_checker=jsonschema.FormatChecker())
    return found


def test_each_committed_version_has_one_event(tmp_path: Path, log_file: Path) -> None:
    source = Table.create(str(tmp_path / "pages.lance"), {"id": [1, 2], "lang": ["fr", "en"]}, stable_row_ids=True)
    intent = "once"
    source.append({"id": [3], "lang": ["fr"]}, intent=intent, properties={"dagster.asset_key": "lake/pages"})
    source.append({"id": [3], "lang": ["fr"]}, intent=intent)
    view = tmp_path / "fr.lance"
    refresh_view(str(view), of=source.uri, select=["id", "upper(lang) AS code"], where="lang = 'fr'")
    created, appended, refreshed = events(log_file)

    assert [each["eventType"] for each in (created, appended, refreshed)] == ["COMPLETE"] * 3
    (output,) = created["outputs"]
    assert (output["namespace"], output["name"]) == ("file", source.uri)
    assert [field["name"] for field in output["facets"]["schema"]["fields"]] == ["id", "lang"]
    assert output["facets"]["version"]["datasetVersion"] == "1"
    assert output["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert appended["job"]["name"] == "lake/pages"
    assert appended["outputs"][0]["facets"]["version"]["datasetVersion"] == "2"
    (read,) = refreshed["inputs"]
    assert (read["name"], read["facets"]["version"]["datasetVersion"]) == (source.uri, "2")
    lineage = refreshed["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert {column: [each["field"] for each in value["inputFields"]] for column, value in lineage.items()} == {
        "id": ["id"],
        "code": ["lang"],
    }


def test_a_group_commit_has_one_event(tmp_path: Path, log_file: Path) -> None:
    table = Table.create(str(tmp_path / "t.lance"), {"id": [0]}, durable=False)
    with ThreadPoolExecutor(8) as threads:
        committed = list(threads.map(lambda number: table.append({"id": [number]}).version, range(24)))
    reported = [int(each["outputs"][0]["facets"]["version"]["datasetVersion"]) for each in events(log_file)]
    assert sorted(reported) == [1, *sorted(set(map(int, committed)))]


def test_a_transport_that_fails_or_hangs_delays_no_commit(
    tmp_path: Path, log_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    class Transport:
        def emit(self, _event: object) -> None:
            release.wait()
            raise ConnectionError(f"https://user:{CANARY}@host refused the event")

    monkeypatch.setattr(openlineage, "open_client", Transport)
    monkeypatch.setattr(openlineage, "QUEUED_MAX", 2)
    table = Table.create(str(tmp_path / "t.lance"), {"id": [1]}, durable=False)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            table = table.append({"id": [number]}).table
        started = time.monotonic()
        assert not openlineage.flush(0.01)
        assert time.monotonic() - started < 5
        release.set()
        assert openlineage.flush()
    assert table.version == 6
    assert "was not sent" in caplog.text
    assert CANARY not in caplog.text


def test_without_the_switch_nothing_is_sent(tmp_path: Path, log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(openlineage.SWITCH, "0")
    Table.create(str(tmp_path / "t.lance"), {"id": [1]})
    assert openlineage.flush()
    assert not log_file.exists()


def test_pending_events_are_sent_at_the_end_of_the_process(tmp_path: Path, log_file: Path) -> None:
    program = f"from lance_core import Table\nTable.create({str(tmp_path / 't.lance')!r}, {{'id': [1]}})\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert len(events(log_file)) == 1


EXIT_HANDLER = """
import atexit

@atexit.register
def commit_at_exit():  # runs after the handlers of the modules that are imported below
    for number in range(2):
        Table.open({uri!r}).append({{"id": [number]}})

from lance_core import Table
from lance_core.commit import openlineage
openlineage.FLUSH_SECONDS = {seconds}
{more}
"""


@pytest.mark.parametrize("commits_before", [True, False])
def test_events_of_exit_handlers_are_sent(tmp_path: Path, log_file: Path, commits_before: bool) -> None:
    uri = str(tmp_path / "t.lance")
    Table.create(uri, {"id": [1]}, durable=False)
    sent = len(events(log_file))
    more = f"Table.open({uri!r}).append({{'id': [2]}})" if commits_before else ""
    subprocess.run([sys.executable, "-c", EXIT_HANDLER.format(uri=uri, seconds=60, more=more)], check=True, timeout=120)
    assert len(events(log_file)) == sent + 2 + commits_before


def test_a_transport_that_hangs_delays_the_exit_once(tmp_path: Path, log_file: Path) -> None:
    uri = str(tmp_path / "t.lance")
    Table.create(uri, {"id": [1]}, durable=False)
    hang = """
import threading
openlineage.open_client = lambda: threading.Event().wait()
"""
    program = EXIT_HANDLER.format(uri=uri, seconds=0.2, more=f"{hang}\nTable.open({uri!r}).append({{'id': [2]}})")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert Table.open(uri).version == 4


def test_a_commit_succeeds_if_no_thread_can_be_started(
    tmp_path: Path, log_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(openlineage, "start_thread", refuse)
        table = Table.create(str(tmp_path / "t.lance"), {"id": [1]}, durable=False)
        assert openlineage.flush(0)
    assert "version 1 was not sent: can't start new thread" in caplog.text
    table.append({"id": [2]})
    assert len(events(log_file)) == 1


def test_malformed_properties_are_ignored(tmp_path: Path, log_file: Path) -> None:
    table = Table.create(str(tmp_path / "t.lance"), {"id": [1]})
    for inputs, columns in (
        ('{"s3://k:canary-51f7@lake/a.lance?sig=canary-51f7": [3, "x"]}', '{"columns": 3}'),
        ("[1", "["),
        ("3", '{"tables": [], "columns": {"id": [[7, "x"]]}}'),
    ):
        table = table.append({"id": [2]}, properties={openlineage.INPUTS: inputs, openlineage.COLUMNS: columns}).table
    assert [[each["name"] for each in event["inputs"]] for event in events(log_file)] == [[], ["a.lance"], [], []]
    assert CANARY not in log_file.read_text()
