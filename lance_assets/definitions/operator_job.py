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
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import RecordingState, record_in_run
from lance_assets.ledger.version_metadata import Metadata, committed_facts, metadata_of, metadata_of_retired
from lance_assets.provenance.properties import CODE_LOCATION, INTENT, RUN_ID
from lance_assets.provenance.run_provenance import logical_run_id
from lance_core import Committed, InvalidInput, NotFound, Table

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
    table = ledger.open()
    match config.action:
        case CreateTag(tag=tag, version=version):
            return _tag(context, table, tag, version, move=False)
        case PromoteVersion(tag=tag, version=version):
            return _tag(context, table, tag, version, move=True)
        case DeleteTag(tag=tag):
            table.tags.delete(tag)
            context.log.info(f"{ledger.label}: the tag {tag!r} was deleted")
            return {"lance/tag": dg.MetadataValue.text(tag)}
        case RollBack() as action:
            committed = _roll_back(context, table, action)
        case PublishVersion(detached_version=number):
            if not number.strip().isdecimal():
                raise InvalidInput(f"detached_version={number!r} is not the number of a version")
            committed = table.publish(int(number))
            context.log.warning(f"{ledger.label}: the refused version {number} was published as {committed.version}")
        case _:
            assert_never(config.action)
    return _record(context, ledger, committed, checks)


def _tag(context: dg.OpExecutionContext, table: Table, tag: str, version: int | None, *, move: bool) -> Metadata:
    number = table.version if version is None else version
    existing = table.tags.list().get(tag)
    if existing is not None and (existing.branch, existing.version) == (table.branch, number):
        context.log.info(f"{table.uri}: the tag {tag!r} is at version {number} already")
    elif existing is not None and move:
        table.tags.update(tag, number)
    else:
        table.tags.create(tag, number)
    before = {} if existing is None else {"lance/version_before": dg.MetadataValue.int(existing.version)}
    return {"lance/tag": dg.MetadataValue.text(tag), "lance/version": dg.MetadataValue.int(number), **before}


def _roll_back(context: dg.OpExecutionContext, table: Table, action: RollBack) -> Committed:
    if (action.version is None) == (action.tag is None):
        raise InvalidInput("roll_back needs the version= or the tag= to return to, and only one of them")
    number = action.version
    if action.tag is not None:
        tag = table.tags.list().get(action.tag)
        if tag is None or tag.branch != table.branch:
            raise NotFound(f"{table.uri} has no tag {action.tag!r} on this branch")
        number = tag.version
    assert number is not None
    intent = f"dagster job {context.job_name} once for run {logical_run_id(context.instance, context.run)}"
    location = context.run.tags.get(_LOCATION_TAG)
    properties = {RUN_ID: context.run.run_id, INTENT: intent, **({CODE_LOCATION: location} if location else {})}
    return table.restore(number, intent=intent, properties=properties)


def _record(context: dg.OpExecutionContext, ledger: Ledger, committed: Committed, checks: Sequence[Check]) -> Metadata:
    """Record the version on the ledger, evaluate the checks of the table on it, and return its metadata."""
    if retired := metadata_of_retired(committed):
        return retired
    facts = committed_facts(committed, incarnation_of(context.instance, ledger, ledger.identity_of(committed.table)))
    state = record_in_run(context, ledger, facts, committed.table).state
    if state is RecordingState.MISSING:
        evaluate_in_run(context, ledger, checks, committed.table, facts.partition)
    return metadata_of(facts, run_is_known=facts.run_id == context.run.run_id)
