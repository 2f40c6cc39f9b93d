"""Run intents: the chains of retries and re-executions in an instance, and the intent that a chain shares."""

from uuid import uuid4

import dagster as dg
import pytest

from lance_assets.provenance.run_provenance import logical_run_id, partition_intent, run_intent

OK, FAILED, CANCELED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED

# Outcomes of the earlier runs of a chain, first to last, and the positions of those that the last run continues.
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
def test_run_continues_earlier_runs_that_did_not_succeed(fates: tuple[dg.DagsterRunStatus, ...], expected: int) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        runs = create_chain(instance, *fates)
        assert logical_run_id(instance, runs[-1]) == runs[expected].run_id


def test_retry_of_a_deleted_run() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        parent = str(uuid4())
        for tags, expected in (({}, "itself"), ({"dagster/retry_number": "1"}, "parent")):
            orphan = add_run(instance, dg.DagsterRunStatus.STARTED, parent, parent, tags)
            assert logical_run_id(instance, orphan) == (parent if expected == "parent" else orphan.run_id)


def test_intents_of_separate_commits_differ() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first, second = create_chain(instance)[-1], create_chain(instance)[-1]
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


def create_chain(instance: dg.DagsterInstance, *fates: dg.DagsterRunStatus) -> list[dg.DagsterRun]:
    runs: list[dg.DagsterRun] = []
    for fate in (*fates, dg.DagsterRunStatus.STARTED):
        parent = runs[-1].run_id if runs else None
        runs.append(add_run(instance, fate, parent, runs[0].run_id if runs else None, {}))
    return runs


def add_run(
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
