"""Maintenance plan: the due actions with their reasons, and invalid policies."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from lance_assets import Maintenance
from lance_assets.maintenance.plan import describe_shape, plan_maintenance
from lance_core import IndexSurvey, InvalidInput, Survey

IN_SHAPE = Survey(
    version=50,  # type: ignore[arg-type]
    rows=1_000_000,
    deleted_rows=0,
    fragments=10,
    files=10,
    bytes=10**9,
    groups=0,
    small_fragments=0,
    deleted_rows_compacted=0,
    expired_versions=(),
    kept={},
)
BY_USER = IndexSurvey(
    name="user_idx",
    kind="BTREE",
    column="user",
    rows=1_000_000,
    uncovered_rows=0,
    uncovered_fragments=0,
    segments=1,
    joined_segments=0,
    behind=0,
)
POLICY = Maintenance()
OLD: tuple[int, ...] = tuple(range(1, 21))

CASES: dict[str, tuple[dict[str, object], Maintenance, tuple[str, ...], tuple[str, ...]]] = {
    "in shape": ({}, POLICY, (), ()),
    "one small file too few": ({"small_fragments": 15}, POLICY, (), ()),
    "small files": (
        {"small_fragments": 16},
        POLICY,
        ("16 fragments of fewer than 1,048,576 rows can be joined; the bound is 16",),
        (),
    ),
    "small files by another bound": (
        {"small_fragments": 3},
        Maintenance(compact_when_small_files=3, small_file_rows=1000),
        ("3 fragments of fewer than 1,000 rows can be joined; the bound is 3",),
        (),
    ),
    "one alone is nobody's neighbour": ({"small_fragments": 1}, Maintenance(compact_when_small_files=1), (), ()),
    "no bound on small files": ({"small_fragments": 999}, Maintenance(compact_when_small_files=None), (), ()),
    "a few deletions": ({"rows": 920, "deleted_rows": 80, "deleted_rows_compacted": 80}, POLICY, (), ()),
    "deletions": (
        {"rows": 900, "deleted_rows": 100, "deleted_rows_compacted": 100},
        POLICY,
        ("10% of the stored rows are deleted (100 of 1,000); the bound is 10%",),
        (),
    ),
    "deletions that a compaction would leave": ({"rows": 900, "deleted_rows": 100}, POLICY, (), ()),
    "no bound on deletions": (
        {"rows": 1, "deleted_rows": 99, "deleted_rows_compacted": 99},
        Maintenance(compact_when_deleted=None),
        (),
        (),
    ),
    "an empty table": ({"rows": 0, "fragments": 0}, POLICY, (), ()),
    "a few old versions": ({"expired_versions": OLD[:-1]}, POLICY, (), ()),
    "old versions": (
        {"expired_versions": OLD},
        POLICY,
        (),
        ("20 versions (up to 20) can be removed: older than 14 days and not among the newest 10; the bound is 20",),
    ),
    "old versions by another bound": (
        {"expired_versions": (7,)},
        Maintenance(clean_when_versions=1, keep_for=timedelta(hours=36), keep_versions=3),
        (),
        ("1 version (up to 7) can be removed: older than 1 day, 12:00:00 and not among the newest 3; the bound is 1",),
    ),
    "no cleanup": ({"expired_versions": OLD}, Maintenance(clean_when_versions=None), (), ()),
    "both": (
        {"small_fragments": 20, "expired_versions": OLD},
        POLICY,
        ("20 fragments of fewer than 1,048,576 rows can be joined; the bound is 16",),
        ("20 versions (up to 20) can be removed: older than 14 days and not among the newest 10; the bound is 20",),
    ),
}


LAGS = "the index 'user_idx' on user leaves 100,000 rows of 1,000,000 uncovered (10%); the bound is 10%"
INDEX_CASES: dict[str, tuple[dict[str, int], Maintenance, tuple[str, ...]]] = {
    "in shape": ({}, POLICY, ()),
    "a row too few": ({"uncovered_rows": 99_999, "uncovered_fragments": 1}, POLICY, ()),
    "a share": ({"uncovered_rows": 100_000}, POLICY, (LAGS,)),
    "rows of a large table": (
        {"rows": 10**9, "uncovered_rows": 10**6},
        POLICY,
        ("the index 'user_idx' on user leaves 1,000,000 rows of 1,000,000,000 uncovered; the bound is 1,000,000 rows",),
    ),
    "rows by another bound": (
        {"uncovered_rows": 1},
        Maintenance(index_when_uncovered_rows=1),
        ("the index 'user_idx' on user leaves 1 row of 1,000,000 uncovered; the bound is 1 row",),
    ),
    "a few segments": ({"segments": 9, "joined_segments": 7}, POLICY, ()),
    "segments": (
        {"segments": 9, "joined_segments": 8},
        POLICY,
        ("the index 'user_idx' on user has 8 segments that could be merged; the bound is 8",),
    ),
    "one alone has nothing to be joined with": ({"joined_segments": 1}, Maintenance(index_when_segments=1), ()),
    "moved rows": (
        {"behind": 1},
        POLICY,
        ("the index 'user_idx' on user has 1 segment whose rows a compaction moved",),
    ),
    "a table without rows": ({"rows": 0}, POLICY, ()),
    "other bounds alone": (
        {"uncovered_rows": 10**6, "joined_segments": 99, "behind": 3},
        Maintenance(index_when_uncovered=None, index_when_uncovered_rows=None, index_when_segments=None),
        (),
    ),
}


@pytest.mark.parametrize("case", INDEX_CASES.values(), ids=INDEX_CASES)
def test_due_index_maintenance(case: tuple[dict[str, int], Maintenance, tuple[str, ...]]) -> None:
    changes, policy, expected = case
    index = replace(BY_USER, **changes)  # type: ignore[arg-type]
    due = plan_maintenance(replace(IN_SHAPE, indices=(BY_USER, index)), policy)
    assert (due.compact, due.index, due.clean, due.is_due) == ((), expected, (), bool(expected))
    assert due.key == ("v50-index" if expected else "v50")


def test_indices_come_between_compaction_and_cleanup() -> None:
    lags = replace(BY_USER, uncovered_rows=100_000)
    survey = replace(IN_SHAPE, small_fragments=16, indices=(lags,), expired_versions=OLD)  # type: ignore[arg-type]
    due = plan_maintenance(survey, POLICY)
    assert due.reasons == (*due.compact, LAGS, *due.clean)
    assert due.key == "v50-compact-index-clean20"
    assert "; its index 'user_idx' leaves 100,000 rows uncovered; " in describe_shape(survey)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_due_maintenance(
    case: tuple[dict[str, object], Maintenance, tuple[str, ...], tuple[str, ...]],
) -> None:
    changes, policy, compact, clean = case
    due = plan_maintenance(replace(IN_SHAPE, **changes), policy)  # type: ignore[arg-type]
    assert (due.compact, due.clean) == (compact, clean)
    assert due.is_due == bool(compact or clean)
    assert due.reasons == compact + clean


def test_needed_versions_do_not_count() -> None:
    survey = replace(IN_SHAPE, expired_versions=OLD)  # type: ignore[arg-type]
    assert plan_maintenance(survey, POLICY, pinned={20, 99}).clean == ()
    due = plan_maintenance(survey, Maintenance(clean_when_versions=19), pinned={20, 99})
    assert due.clean[0].startswith("19 versions (up to 19) can be removed")


def test_run_key_identifies_the_work() -> None:
    small, old = replace(IN_SHAPE, small_fragments=16), replace(IN_SHAPE, expired_versions=OLD)  # type: ignore[arg-type]
    keys = [
        plan_maintenance(survey, Maintenance(clean_when_versions=1)).key
        for survey in (IN_SHAPE, small, replace(small, version=51), old, replace(old, expired_versions=OLD[:-1]))  # type: ignore[arg-type]
    ]
    assert keys == ["v50", "v50-compact", "v51-compact", "v50-clean20", "v50-clean19"]


def test_plan_without_work_is_described() -> None:
    assert describe_shape(replace(IN_SHAPE, fragments=1, expired_versions=(3,))) == (  # type: ignore[arg-type]
        "version 50 has 1,000,000 rows in 1 fragment, of which 0 could be joined; 1 version could be removed"
    )


BAD: list[tuple[str, Callable[[], object]]] = [
    (
        "compact_when_small_files=0 must be a whole number from 1, or None",
        lambda: Maintenance(compact_when_small_files=0),
    ),
    ("keep_versions=True must be a whole number", lambda: Maintenance(keep_versions=True)),
    ("keep_versions=None must be a whole number from 1", lambda: Maintenance(keep_versions=None)),  # type: ignore[arg-type]
    ("compact_when_deleted=10 must be a share", lambda: Maintenance(compact_when_deleted=10)),
    ("compact_when_deleted='0.1' must be a share", lambda: Maintenance(compact_when_deleted="0.1")),  # type: ignore[arg-type]
    ("index_when_uncovered=0 must be a share", lambda: Maintenance(index_when_uncovered=0)),
    ("index_when_segments=0 must be a whole number", lambda: Maintenance(index_when_segments=0)),
    ("index_when_uncovered_rows=0.5 must be a whole", lambda: Maintenance(index_when_uncovered_rows=0.5)),  # type: ignore[arg-type]
    ("keep_for=14 must be a timedelta", lambda: Maintenance(keep_for=14)),  # type: ignore[arg-type]
    ("keep_for=", lambda: Maintenance(keep_for=timedelta(days=-1))),
    ("orphan_grace=", lambda: Maintenance(orphan_grace=timedelta(minutes=59))),
    ("small_file_rows=11 is above target_rows=10", lambda: Maintenance(small_file_rows=11, target_rows=10)),
    ("pins contains 'v3'", lambda: Maintenance(pins=["v3"])),  # type: ignore[list-item]
    ("every='at night'", lambda: Maintenance(every="at night")),
    (
        "every bound is None",
        lambda: Maintenance(
            compact_when_small_files=None,
            compact_when_deleted=None,
            clean_when_versions=None,
            index_when_uncovered=None,
            index_when_uncovered_rows=None,
            index_when_segments=None,
        ),
    ),
]


@pytest.mark.parametrize(("message", "declare"), BAD, ids=[message for message, _ in BAD])
def test_invalid_policies(message: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare()
    assert str(refused.value).startswith("Maintenance: ")
    assert message in str(refused.value)
