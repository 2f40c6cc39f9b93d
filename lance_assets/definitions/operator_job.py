"""Operator job of a table: tags, promotes, rolls back and publishes versions from Dagster, one operation per run.

    run config {"ops": {"operation": {"config": {"action": {"promote": {"tag": "live", "version": 42}}}}}}

The classes of actions are the typed config. A rollback and a publication commit a version, which the run records on the
ledger and evaluates the checks of the table on, like a write; a tag commits none. Start with `operator_job`.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

import dagster as dg
from pydantic import Field

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import evaluate_in_run
from lance_assets.common.version_actions import (
    VersionAction,
    plan_promotion,
    plan_publication,
    plan_rollback,
    plan_tag,
    plan_tag_deletion,
)
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import RecordingState, record_in_run
from lance_assets.ledger.version_metadata import Metadata, committed_facts, metadata_of, metadata_of_retired
from lance_assets.provenance.properties import CODE_LOCATION, INTENT, RUN_ID
from lance_assets.provenance.run_provenance import logical_run_id
from lance_core import Committed, InvalidInput, Table

NODE = "operation"
"""Name of the op in the job, the same for every table."""
_LOCATION_TAG = "dagster/code_location"


class CreateTag(dg.Config):
    """Give a version a name that protects it from cleanup."""

    kind: Literal["tag"] = "tag"
    tag: str = Field(description="Name of the new tag.")
    version: int | None = Field(default=None, description="Version to tag (default: the newest).")


class PromoteVersion(dg.Config):
    """Move a tag, such as the one that readers open, to a version. The tag is created if it does not exist."""

    kind: Literal["promote"] = "promote"
    tag: str = Field(description="Name of the tag.")
    version: int | None = Field(default=None, description="Version to promote (default: the newest).")


class DeleteTag(dg.Config):
    """Delete a tag. Its version stays until a cleanup removes it."""

    kind: Literal["delete_tag"] = "delete_tag"
    tag: str = Field(description="Name of the tag.")


class RollBack(dg.Config):
    """Commit a version with the content of an older one. The versions in between stay in the history."""

    kind: Literal["roll_back"] = "roll_back"
    version: int | None = Field(default=None, description="Version whose content is committed again.")
    tag: str | None = Field(default=None, description="Tag of that version, instead of its number.")
    newest: int | None = Field(
        default=None,
        description="Newest version that may be undone; the run fails if there is a later one (default: the newest).",
    )


class PublishVersion(dg.Config):
    """Publish a version that an audit refused. The checks of the table are evaluated on it, and block nothing."""

    kind: Literal["publish"] = "publish"
    # A number from 2**63 on, which JSON in browsers rounds.
    detached_version: str = Field(description="Number of the refused version, as the failure of its run shows it.")


class Operation(dg.Config):
    """Config of the op: one action, on the main branch or another one."""

    action: CreateTag | PromoteVersion | DeleteTag | RollBack | PublishVersion = Field(discriminator="kind")
    branch: str | None = Field(default=None, description="Branch that the table follows (default: the main branch).")


def operator_job(ledgers: Sequence[Ledger], checks: Sequence[Check] = ()) -> dg.JobDefinition:
    """Return the job of a table. `ledgers` are those of its branches, the main branch first."""
    main = ledgers[0]
    by_branch = {ledger.branch: ledger for ledger in ledgers}

    @dg.op(
        name=f"lance_operation__{main.table_slug}",
        description=f"Tags, promotes, rolls back or publishes a version of the Lance table {main.label}.",
        out=dg.Out(dg.Nothing),
        tags={"dagster/kind/lance": ""},
    )
    def operation(context: dg.OpExecutionContext, config: Operation) -> dg.Output[None]:
        with translate_errors(main, retry_number=context.retry_number):
            if config.branch not in by_branch:
                followed = ", ".join(str(branch) for branch in by_branch if branch) or "none"
                raise InvalidInput(f"the table follows no branch {config.branch!r}; it follows {followed}")
            metadata = _perform(context, by_branch[config.branch], config, checks)
        return dg.Output(None, metadata=metadata)

    @dg.job(
        name=f"lance_operate__{main.table_slug}",
        description=(
            f"Tags, promotes, rolls back or publishes a version of the Lance table {main.label}. Its config names the "
            "action."
        ),
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        operation.alias(NODE)()

    return job


def _perform(context: dg.OpExecutionContext, ledger: Ledger, config: Operation, checks: Sequence[Check]) -> Metadata:
    planned = _plan(ledger.open(), config.action)
    intent = f"dagster job {context.job_name} once for run {logical_run_id(context.instance, context.run)}"
    location = context.run.tags.get(_LOCATION_TAG)
    properties = {RUN_ID: context.run.run_id, INTENT: intent, **({CODE_LOCATION: location} if location else {})}
    committed = planned.apply(intent=intent, properties=properties)
    context.log.info(f"{ledger.label}: {planned.summary}")
    if committed is not None:
        return _record(context, ledger, committed, checks)
    numbers = {"lance/version": planned.version, "lance/version_before": planned.before}
    metadata: Metadata = {"lance/tag": dg.MetadataValue.text(getattr(config.action, "tag", None) or "")}
    if isinstance(config.action, DeleteTag):
        return metadata
    return metadata | {name: dg.MetadataValue.int(each) for name, each in numbers.items() if each is not None}


def _plan(table: Table, action: CreateTag | PromoteVersion | DeleteTag | RollBack | PublishVersion) -> VersionAction:
    match action:
        case CreateTag(tag=tag, version=version):
            return plan_tag(table, tag, version)
        case PromoteVersion(tag=tag, version=version):
            return plan_promotion(table, tag, version)
        case DeleteTag(tag=tag):
            return plan_tag_deletion(table, tag)
        case RollBack(version=version, tag=tag, newest=newest):
            return plan_rollback(table, version, tag, newest=newest)
        case PublishVersion(detached_version=number):
            return plan_publication(table, number)
        case _:
            assert_never(action)


def _record(context: dg.OpExecutionContext, ledger: Ledger, committed: Committed, checks: Sequence[Check]) -> Metadata:
    """Record the version on the ledger, evaluate the checks of the table on it, and return its metadata."""
    if retired := metadata_of_retired(committed):
        return retired
    facts = committed_facts(committed, incarnation_of(context.instance, ledger, ledger.identity_of(committed.table)))
    state = record_in_run(context, ledger, facts, committed.table).state
    if state is RecordingState.MISSING:
        evaluate_in_run(context, ledger, checks, committed.table, facts.partition)
    return metadata_of(facts, run_is_known=facts.run_id == context.run.run_id)
