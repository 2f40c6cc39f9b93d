"""Tests of power losses by replay of system calls. A machine without `strace` replays a committed recording instead of
recording the writer. `make torture` runs the whole workload, and the same on other writers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syscalls.events import FileEvent, load_events, save_events
from tests.syscalls.power_loss import Recording, check_state, record_workload, workspace
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.recordings import DEFECTIVE_RUNS, SOUND, load_recording
from tests.syscalls.strace import can_trace
from tests.torture.power_loss import PR, choose_states, is_detected, open_states


@pytest.fixture(scope="module")
def reader() -> Iterator[ReaderProcess]:
    with ReaderProcess() as process:
        yield process


def test_acknowledged_versions_survive(reader: ReaderProcess) -> None:
    with workspace() as place:
        recording = record_workload("ours", place, steps=PR.steps) if can_trace() else load_recording(SOUND)
        states = choose_states(recording, PR)
        assert len(states) > PR.states_max // 2
        assert {state.model for state in states} == {"ordered", "weak"}
        assert open_states(recording, states, place, reader) == ({}, [])


@pytest.mark.parametrize("defect", DEFECTIVE_RUNS)
def test_planted_defects_are_detected(defect: str, reader: ReaderProcess) -> None:
    with workspace() as place:
        assert is_detected(load_recording(defect), PR, place, reader)


def test_a_state_without_an_acknowledged_version_is_detected(reader: ReaderProcess) -> None:
    sound = load_recording(SOUND)
    (_, first), (_, second), *_ = sound.acknowledgements
    early = next(state for state in sound.sample_states(1, 0) if 0 < len(sound.expectation(state).acknowledged) < 2)
    reported_early = Recording("ours", [*sound.events[: early.event_number]])
    assert (first.key, second.key, len(reported_early.acknowledgements)) == ("1", "2", 1)
    with workspace() as place:
        assert not check_state(reported_early, early, place, reader)
        report = next(event for event in sound.events if event.kind == "report" and b'"key": "2"' in event.data)
        moved = Recording("ours", [report, *sound.events])
        assert check_state(moved, early, place, reader)


def test_events_are_saved_and_loaded(tmp_path: Path) -> None:
    events = [FileEvent("write", "a", file=3, offset=7, data=b"\0\xff"), FileEvent("sync", "a", file=3, since=1)]
    save_events(tmp_path / "events.xz", events)
    assert load_events(tmp_path / "events.xz") == events
