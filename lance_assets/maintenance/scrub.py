"""Scrub: verifies a share of the files of a table in each run, so that damage is found while a copy still exists.

A scrub reads files and compares them with the checksums that their commits recorded. Files without one, as other
engines write them, are decoded in processes of their own, which detects most damage. Each run continues where the last
successful one stopped, so runs with `share=1/30` read every file once in thirty runs. The findings are a check result
of the asset `<table>_scrub`. A scrub writes nothing to the table. Start with `Scrub`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import dagster as dg

from lance_assets.common.code_location import CodeLocation, code_reference, locate_at
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.ledger import Ledger
from lance_assets.maintenance.policy import check_cron
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, session_of
from lance_assets.spark import verify_files
from lance_core import InvalidInput, NotFound
from lance_core.progress import log_reports
from lance_core.tasks.verification import Report

CHECK_NAME = "files_are_intact"
TURN_KEY = "lance/scrub_turn"
"""Metadata key of the number of the run, which selects the files."""
_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub:
    """Verification of the files of a table.

    >>> nightly = Scrub(every="0 4 * * *", share=1 / 30)

    Each run verifies the share `share` of the files of the newest version, or with `versions="all"` of all versions. A
    schedule launches the runs at `every`, a cron expression in `timezone` (default: UTC); `None` means no schedule.
    """

    share: float = 1 / 30
    every: str | None = "0 4 * * *"
    timezone: str | None = None
    versions: Literal["head", "all"] = "head"

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 < self.share <= 1:
            raise InvalidInput(f"Scrub: share={self.share!r} must be a share of the files, above 0 and up to 1")
        if self.versions not in ("head", "all"):
            raise InvalidInput(f"Scrub: versions={self.versions!r} must be 'head' or 'all'")
        check_cron(self.every, self.timezone, "Scrub")


def scrub_key(ledger: Ledger) -> dg.AssetKey:
    """Return the key of the scrub asset of a table."""
    return dg.AssetKey([*ledger.prefix, f"{ledger.name}_scrub"])


def scrub_asset(
    ledger: Ledger, scrub: Scrub, *, group: str, declared_at: CodeLocation | None = None
) -> dg.AssetsDefinition:
    """Return the scrub asset of a table. `declared_at` is the location of its declaration."""
    key = scrub_key(ledger)

    @dg.asset(
        key=key,
        group_name=group,
        kinds={"spark", "lance"},
        description=f"Verifies files of the Lance table {ledger.label} by their checksums. It writes nothing.",
        required_resource_keys={SPARK_RESOURCE_KEY},
        check_specs=[dg.AssetCheckSpec(CHECK_NAME, asset=key, description="No verified file is damaged or missing.")],
        metadata=code_reference(declared_at),
    )
    @locate_at(declared_at)
    def asset(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        with translate_errors(ledger, retry_number=context.retry_number):
            yield _verify_share(context, ledger, scrub)

    return asset


def scrub_schedule(ledger: Ledger, scrub: Scrub) -> dg.ScheduleDefinition:
    """Return the schedule of a scrub with `every`."""
    assert scrub.every is not None, "a schedule needs scrub.every"
    return dg.ScheduleDefinition(
        name=f"lance_scrub__{ledger.table_slug}",
        cron_schedule=scrub.every,
        execution_timezone=scrub.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        target=dg.AssetSelection.assets(scrub_key(ledger)),
        description=f"Verifies a share of the files of the Lance table {ledger.label}.",
    )


def _verify_share(context: dg.AssetExecutionContext, ledger: Ledger, scrub: Scrub) -> dg.MaterializeResult[None]:
    turn = _next_turn(context.instance, scrub_key(ledger))
    spark = session_of(getattr(context.resources, SPARK_RESOURCE_KEY))
    access = ledger.access()
    try:
        report = verify_files(
            spark,
            ledger.uri,
            versions=scrub.versions,
            share=scrub.share,
            turn=turn,
            branch=access["branch"],
            storage_options=access["storage_options"],
            manifest_store=access["manifest_store"],
            progress=log_reports(context.log.info),
        )
    except NotFound as error:
        context.log.info(f"{ledger.label}: nothing to verify: {error}")
        result = dg.AssetCheckResult(check_name=CHECK_NAME, passed=True, description=str(error))
        return dg.MaterializeResult(metadata={TURN_KEY: turn}, check_results=[result])
    for finding in report.errors[:_SHOWN_MAX]:
        context.log.error(f"{ledger.label}: {finding}")
    value = dg.MetadataValue.int
    metadata = {
        TURN_KEY: value(turn),
        "lance/files_verified": value(report.verified_files),
        "lance/files_damaged": value(len(report.errors)),
        "lance/files_without_checksum": value(report.files - report.verified_files),
    }
    return dg.MaterializeResult(metadata=metadata, check_results=[_check_result(report)])


def _check_result(report: Report) -> dg.AssetCheckResult:
    if report.is_sound:
        text = f"{report.verified_files} files have their recorded checksums"
        if decoded := report.files - report.verified_files:
            text += (
                f"; {decoded} files have none and were decoded without an error (Table.record_checksums hashes them)"
            )
        return dg.AssetCheckResult(check_name=CHECK_NAME, passed=True, description=text)
    return dg.AssetCheckResult(
        check_name=CHECK_NAME,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{len(report.errors)} files are damaged or missing; {report.errors[0].repair}",
        metadata={"lance/findings": dg.MetadataValue.md(_format_errors(report))},
    )


def _format_errors(report: Report) -> str:
    lines = [f"- `{finding.path}`: {finding.what}" for finding in report.errors[:_SHOWN_MAX]]
    if len(report.errors) > _SHOWN_MAX:
        lines.append(f"- and {len(report.errors) - _SHOWN_MAX} more")
    return "\n".join(lines)


def _next_turn(instance: dg.DagsterInstance, key: dg.AssetKey) -> int:
    """Return the turn after that of the last successful run; 0 for the first one."""
    event = instance.get_latest_materialization_event(key)
    materialization = event.asset_materialization if event else None
    last = materialization.metadata.get(TURN_KEY) if materialization else None
    return last.value + 1 if isinstance(last, dg.IntMetadataValue) and last.value is not None else 0
