"""Verbs stopped at some of their calls, in every kind of place; `crash_points.py` says what is promised, `make torture`
stops them at all.
"""

import pytest

from lance_core.commit import loop, write_protocol
from lance_core.format import refs
from lance_core.format.refs import Branch
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.table import branches
from lance_core.transactions.apply import Fork
from lance_core.versions.location import Location
from lance_core.versions.refs import create_reference
from lance_core.versions.snapshot import Snapshot
from tests.histories.crash_points import Stage
from tests.histories.stoppable_operations import DEEDS
from tests.histories.storage_backends import PLACES
from tests.torture import crashes

EVERYWHERE = ("create", "append", "upsert keys 0 and 100", "compact", "delete a branch", "cleanup")
ON_DISK = ("update v of fragment 0", "merge z")
FEW = {"disk": (17, ON_DISK), "bucket of an emulator": (3, ON_DISK), "disk with database": (11, ON_DISK[:1])}


@pytest.mark.parametrize("place", PLACES)
def test_somebody_goes_on(place: str) -> None:
    every, deeds = FEW.get(place, (13, EVERYWHERE))
    report = crashes.run(crashes.Size(every=every, places=(place,), deeds=deeds))
    assert not report.failures, "\n".join(report.failures)
    assert report.case_count >= 5


@pytest.mark.parametrize("name", DEEDS)
def test_every_deed_in_memory(name: str) -> None:
    stage = Stage(PLACES["memory"](), DEEDS[name])
    points = list(stage.points())
    assert len(points) >= 8
    begin = len(name) % 9
    wrong = [text for point in points[begin::9] if (text := stage.broken(point))]
    assert not wrong, "\n".join(wrong)


def test_who_does_not_look_for_an_earlier_landing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_protocol, "find_committed", lambda begun: None)
    monkeypatch.setattr(loop, "_with_uuid", lambda others, uuid: None)
    stage = Stage(PLACES["memory"](), DEEDS["append"])
    assert any("damaged" in stage.broken(point) for point in stage.points())


def test_who_names_files_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that is seen before it has a version."""
    commit_branch = branches._commit

    def backwards(target: Location, ours: Transaction, born: Fork, runtime: Runtime) -> Snapshot:
        main = target.locate_main_branch(born.branch)
        info = Branch(born.source.branch, born.source.version, 0, 0, ())
        create_reference(main.store, refs.branch_path(born.branch or ""), refs.encode_branch(info))
        return commit_branch(target, ours, born, runtime)

    monkeypatch.setattr(branches, "_commit", backwards)
    monkeypatch.setattr(branches, "create_reference", lambda store, path, data: True)
    stage = Stage(PLACES["memory"](), DEEDS["branch"])
    assert any("there is no Lance table" in stage.broken(point) for point in stage.points())
