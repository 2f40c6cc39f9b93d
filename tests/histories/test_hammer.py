"""The hammer in small: real processes on a real directory and on an object store behind a bad network, killed and
started again with the same intents; and proof that its judge sees what is wrong. `make torture` has it at full size.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from lance_core import Table
from tests.histories.hammer import Played, Size, hammer, jobs
from tests.histories.hammer_invariants import judge
from tests.histories.hammer_locations import Place, local_place, s3_place
from tests.histories.hammer_writer import VERBS, Answer, Job, Work, done, row

LOCAL = Size(writers=4, works=8, kills=8)
S3 = Size(writers=3, works=4, kills=2)
FAULTS_PER_REQUEST = 0.05
ALONE = Size(writers=1, works=25, kills=0, seed=0)


def check(place: Place, size: Size) -> Played:
    played = hammer(place, size)
    assert judge(place, size, played) == []
    return played


def test_killed_writers_write_once(tmp_path: Path) -> None:
    played = check(local_place(tmp_path), LOCAL)
    assert played.kills == LOCAL.kills
    assert not played.raised


def test_killed_writers_write_once_over_a_bad_network() -> None:
    with s3_place(FAULTS_PER_REQUEST) as place:
        assert check(place, S3).kills == S3.kills


def alone(place: Place) -> Played:
    """All the work in this process, one piece after the other."""
    (job,) = jobs(ALONE)
    return Played(answers=[done(Job(place.uri, {}, durable=False, work=job), work) for work in job])


def test_all_verbs_take_part(tmp_path: Path) -> None:
    assert {work.verb for work in jobs(ALONE)[0]} == set(VERBS)
    place = local_place(tmp_path)
    assert judge(place, ALONE, alone(place)) == []


def _doubled(place: Place, played: Played) -> None:
    Table.open(place.uri).append(row(0, 0), properties={"hammer.work": played.answers[0].intent})


def _lost(place: Place, played: Played) -> None:
    Table.open(place.uri).restore(len(played.answers) // 2)


def _answered_twice(place: Place, played: Played) -> None:
    played.answers.append(replace(played.answers[0], version=99))


def _never_answered(place: Place, played: Played) -> None:
    played.answers = [answer for answer in played.answers if answer.intent != played.answers[0].intent]


def _a_value_changed(place: Place, played: Played) -> None:
    Table.open(place.uri).update({"n": "n + 1"}, properties={"hammer.work": played.answers[0].intent})


@pytest.mark.parametrize("spoil", [_doubled, _lost, _answered_twice, _never_answered, _a_value_changed])
def test_the_judge_sees_what_is_wrong(spoil, tmp_path: Path) -> None:
    place = local_place(tmp_path)
    played = alone(place)
    spoil(place, played)
    assert judge(place, ALONE, played)


def test_what_is_asked_again_is_found_done(tmp_path: Path) -> None:
    """As a writer does that was killed before it could say so."""
    place = local_place(tmp_path)
    work = Work("once", "append", 1)
    job = Job(place.uri, {}, durable=False, work=(work, work))
    first, again = (done(job, each) for each in job.work)
    assert isinstance(first, Answer)
    assert (first.version, first.landed_before) == (2, False)
    assert (again.version, again.landed_before) == (2, True)
