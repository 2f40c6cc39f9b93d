"""Tests of `lance_core/progress.py`: long verbs report their steps to a function, a bar or a log."""

import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.progress import OperationProgress, log_reports, report, reporter, reporting, track

HOUR = 3600


def aged(table: Table) -> Table:
    """Return the table after its files are an hour old, since a cleanup spares young ones."""
    for path in Path(table.uri).rglob("*"):
        os.utime(path, (path.stat().st_atime - HOUR, path.stat().st_mtime - HOUR))
    return table


VERBS: dict[str, tuple[Callable[..., object], set[str]]] = {
    "compact": (lambda table, **kw: table.compact(target_rows=20, **kw), {"rewrite fragments"}),
    "cleanup": (
        lambda table, **kw: aged(table.overwrite({"id": [1]}).table).cleanup(older_than=timedelta(0), keep=1, **kw),
        {"remove files"},
    ),
    "fsck": (lambda table, **kw: table.fsck(data=True, **kw), {"check versions", "verify files"}),
    "create_index": (lambda table, **kw: table.create_index("x", "BTREE", **kw), {"read rows"}),
    "optimize_indices": (
        lambda table, **kw: table.append({"id": [7], "x": [2]}).table.optimize_indices(**kw),
        {"build segments", "read rows"},
    ),
    "add_columns": (lambda table, **kw: table.add_columns({"y": "x + 1"}, **kw), {"compute columns"}),
    "merge_columns": (
        lambda table, **kw: table.merge_columns({"id": [1], "z": [2]}, "id", **kw),
        {"write columns"},
    ),
    "clone": (lambda table, **kw: table.clone(f"{table.uri}-copy", shallow=False, **kw), {"copy files"}),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = pa.table({"id": range(40), "x": range(40)})
    created = Table.create(tmp_path / "t", rows, max_rows_per_file=10, durable=False)
    return created.create_index("id", "BTREE").table


@pytest.mark.parametrize("verb", VERBS)
def test_a_long_verb_reports_each_step_until_it_is_finished(table: Table, verb: str) -> None:
    call, steps = VERBS[verb]
    reports: list[OperationProgress] = []
    call(table, progress=reports.append)
    assert {each.operation for each in reports} == {verb}
    assert {each.step for each in reports} == steps
    for step in steps:
        states = [each for each in reports if each.step == step]
        assert [each.done for each in states] == sorted(each.done for each in states)
        assert states[-1].is_finished
        assert states[-1].total > 1 or verb == "optimize_indices"
    assert reporter() is None


def test_the_training_of_a_vector_index_is_reported(tmp_path: Path) -> None:
    vectors = {"v": np.random.default_rng(1).random((64, 8), dtype="float32")}
    reports: list[OperationProgress] = []
    Table.create(tmp_path / "v", vectors, durable=False).create_index(
        "v", "IVF_SQ", num_partitions=2, progress=reports.append
    )
    stages = [(each.done, each.total) for each in reports if each.step == "train the model"]
    assert stages == [(0, 2), (1, 2), (2, 2)]
    assert reports[-1].step == "read rows"


def test_an_exception_of_the_receiver_ends_the_operation(table: Table) -> None:
    def interrupt(state: OperationProgress) -> None:
        if state.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.add_columns({"y": "x + 1"}, progress=interrupt)
    assert table.refresh().version == table.version


@pytest.mark.parametrize("progress", [None, 1, "yes"])
def test_other_arguments_are_refused(table: Table, progress: object) -> None:
    with pytest.raises(InvalidInput, match="must be True or a function"):
        table.compact(progress=progress)  # type: ignore[arg-type]


def test_a_log_receives_few_lines(caplog: pytest.LogCaptureFixture, table: Table) -> None:
    with caplog.at_level(logging.INFO, "lance_core.progress"):
        table.compact(progress=True)
    assert [record.getMessage() for record in caplog.records] == ["compact: rewrite fragments: 1 of 1 groups (100%)"]
    lines, now = list[str](), [0.0]
    receive = log_reports(lines.append, lambda: now[0])
    for done in range(11):
        now[0] = done * 2.0
        receive(OperationProgress("fsck", "verify files", done * 10**9, 10**10, "bytes"))
    assert [line.partition("(")[2] for line in lines] == ["30%)", "60%)", "90%)", "100%)"]
    assert lines[0].startswith("fsck: verify files: 3.00 of 10.00 GB")


@pytest.mark.parametrize("is_kernel", [True, False])
def test_only_the_shell_of_a_kernel_is_a_notebook(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, table: Table, is_kernel: bool
) -> None:
    shell = SimpleNamespace(kernel=object()) if is_kernel else None
    # A program that only drives a notebook imports ipykernel, too.
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("sys.stderr", error_output := io.StringIO())
    with caplog.at_level(logging.INFO, "lance_core.progress"):
        table.compact(target_rows=20, progress=True)
    assert bool(error_output.getvalue()) is is_kernel
    assert bool(caplog.records) is not is_kernel


class Terminal(io.StringIO):
    """Text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    table.compact(target_rows=20, progress=True)
    assert "compact: rewrite fragments" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_threads_report_to_the_operation_that_started_them() -> None:
    reports: list[str] = []
    with reporting(lambda state: reports.append(str(state)), "outer"):
        report_from_thread = reporter()
        assert report_from_thread is not None
        for target, step in ((report, "lost"), (report_from_thread, "kept")):
            thread = threading.Thread(target=target, args=(step, 1, 2, "files"))
            thread.start()
            thread.join()
        with reporting(False, "inner"):
            assert list(track(["a"], "step", "items")) == ["a"]
    assert reports == [
        "outer: kept: 1 of 2 files (50%)",
        "outer: step: 0 of 1 items (0%)",
        "outer: step: 1 of 1 items (100%)",
    ]
