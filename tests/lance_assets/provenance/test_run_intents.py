"""Which runs go on for which: the chains that retries and re-executions make in an instance."""

from uuid import uuid4

import dagster as dg
import pytest

from lance_assets.provenance.run_provenance import logical_run_id, partition_intent, run_intent

OK, FAILED, CANCELED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED

# The fates of a chain's earlier runs, first to last, and which of them (by place) the last run goes on for.
CHAINS = [
    ((), 0),
    ((FAILED,), 0),
    ((CANCELED,), 0),
    ((FAILED, FAILED), 0),
    ((OK,), 1),
    ((OK, FAILED), 1),
    ((FAILED, OK), 2),
    ((OK, FAILED, FAILED), 1),
    ((FAILED, OK, FAILED), 2),
]


@pytest.mark.parametrize(("fates", "expected"), CHAINS)
def test_a_run_goes_on_for_those_before_it_that_did_not_succeed(
    fates: tuple[dg.DagsterRunStatus, ...], expected: int
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        runs = chain(instance, *fates)
        assert logical_run_id(instance, runs[-1]) == runs[expected].run_id


def test_a_retry_goes_on_for_a_parent_whose_record_was_deleted() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        parent = str(uuid4())
        for tags, expected in (({}, "itself"), ({"dagster/retry_number": "1"}, "parent")):
            orphan = add(instance, dg.DagsterRunStatus.STARTED, parent, parent, tags)
            assert logical_run_id(instance, orphan) == (parent if expected == "parent" else orphan.run_id)


def test_intents_tell_apart_what_must_land_apart() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first, second = chain(instance)[-1], chain(instance)[-1]
        asset, other = dg.AssetKey(["lake", "a"]), dg.AssetKey(["lake", "b"])
        texts = [
            *(
                run_intent(instance, run, key, day)
                for run in (first, second)
                for key in (asset, other)
                for day in (None, "d")
            ),
            *(partition_intent(key, day) for key in (asset, other) for day in ("d", "e")),
        ]
        assert len(set(texts)) == len(texts)


def chain(instance: dg.DagsterInstance, *fates: dg.DagsterRunStatus) -> list[dg.DagsterRun]:
    runs: list[dg.DagsterRun] = []
    for fate in (*fates, dg.DagsterRunStatus.STARTED):
        parent = runs[-1].run_id if runs else None
        runs.append(add(instance, fate, parent, runs[0].run_id if runs else None, {}))
    return runs


def add(
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    parent: str | None,
    root: str | None,
    tags: dict[str, str],
) -> dg.DagsterRun:
    if parent and root:
        tags = {**tags, "dagster/parent_run_id": parent, "dagster/root_run_id": root}
    return instance.add_run(
        dg.DagsterRun(
            job_name="job", run_id=str(uuid4()), status=status, parent_run_id=parent, root_run_id=root, tags=tags
        )
    )
