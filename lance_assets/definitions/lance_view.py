"""`lance_view()`: declares a materialized view, a Lance table that follows another one by its change feed.

    ledger of the source ──► <name>_refresh (executable, Spark) ──► ledger of the view ──► assets that read the view

A view is a `LanceTable` like any other: it has a ledger, checks, a profile and maintenance, and can be the source of
another view. `writes/view_writes.py` implements the refresh.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.definitions.declared_tables import NamedTable, is_declared
from lance_assets.definitions.lance_table import LanceTable, lance_table
from lance_assets.maintenance import Maintenance, Scrub
from lance_assets.profiles import Profile
from lance_assets.profiles.profile_step import Automation
from lance_assets.resources.lance import LanceResource
from lance_assets.writes import SparkBuildIndex, SparkCompact, SparkOptimizeIndices, Write
from lance_assets.writes.asset_options import REFUSED_BY_TABLES, ConditionName, refuse_options
from lance_assets.writes.computed_writes import SparkComputedColumn
from lance_assets.writes.dependencies import Dependency
from lance_assets.writes.view_writes import SparkRefreshView
from lance_core import InvalidInput
from lance_core.tasks.views.refresh import Select

_KEEPS_ROWS = (SparkBuildIndex, SparkOptimizeIndices, SparkCompact)
_OF_THE_REFRESH = ("code_version", "hooks", "op_tags", "pool", "retry_policy")
"""Arguments of `@dg.asset` that the refresh of a view takes."""
REFUSED_BY_VIEWS: Mapping[str, str] = {
    **{name: reason for name, reason in REFUSED_BY_TABLES.items() if name not in _OF_THE_REFRESH},
    "backfill_policy": "the refresh of a view has no partitions",
    **dict.fromkeys(
        ("config_schema", "required_resource_keys", "resource_defs"),
        "the refresh of a view runs no function of the user",
    ),
}
"""Arguments of `@dg.asset` that a view does not take, with the reason."""
_DESCRIPTION = "A materialized view. Its rows are those of the query on the version of the source that is noted."


@refuse_options(REFUSED_BY_VIEWS, subject="lance_view")
def lance_view(
    name: str,
    of: LanceTable | str,
    *,
    select: Select = None,
    where: str | None = None,
    uri: str | None = None,
    rebuild: bool = False,
    automation_condition: dg.AutomationCondition[Any] | ConditionName | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    code_version: str | None = None,
    hooks: Collection[dg.HookDefinition] | None = None,
    op_tags: Mapping[str, object] | None = None,
    pool: str | None = None,
    writes: Sequence[Write] = (),
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    discover: bool = True,
    checks: Sequence[Check] = (),
    profile: bool | Profile = True,
    computed: Sequence[SparkComputedColumn] = (),
    automation: Automation | None = None,
    freshness: timedelta | dg.FreshnessPolicy | None = None,
    maintenance: Maintenance | None = None,
    scrub: Scrub | None = None,
    storage: LanceResource | None = None,
    storage_options: Mapping[str, str] | None = None,
    storage_version: str | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    kinds: Collection[str] = ("lance",),
    deps: Sequence[Dependency] = (),
    metadata: Mapping[str, object] | None = None,
    operator_job: bool = True,
    samples: bool = False,
    columns: Mapping[str, str] | None = None,
) -> LanceTable:
    """Declare a materialized view: a table that has the rows of the table `of` which match `where`, and follows it.

        recent_fr = lance_view("recent_fr", of=pages, select=["id", "upper(title) AS title"], where="lang = 'fr'")

    `of` is a table of `lance_table` or `lance_view`, its name (its asset key as text), or the URI of another table. The
    columns `select` are names, `SQL AS name`, or a mapping of names to SQL, and all columns of the source by default;
    SQL is Lance SQL. The view has two more columns: `_source_rowid`, the row id of the source row, and
    `_source_version`, the version of the source that last changed it.

    The asset `<name>_refresh` applies what the source has changed since the last run, as one version of the view, which
    notes the version of the source. It computes all rows if it has to, and its metadata says why: the definition
    changed, the needed versions of the source were cleaned up, or another writer changed rows of the view. With
    `automation_condition="eager"`, Dagster runs it for each new version of the source. `retry_policy`, `code_version`,
    `hooks`, `op_tags` and `pool` are those of its step.

    `uri` is by default a directory beside the source. `writes` may build and optimize indices, or compact; the other
    options are those of `lance_table`.
    """
    prefix = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    source = _source_of(of, prefix, name)
    if refused := [write.name for write in writes if not isinstance(write, _KEEPS_ROWS)]:
        raise InvalidInput(
            f"the Lance view {name!r}: the write {refused[0]!r} would change rows, which follow the source; a view "
            "takes writes that build or optimize indices, or compact"
        )
    if uri is None:
        uri = _uri_beside(source, name)
    if storage is None and storage_options is None and isinstance(source, LanceTable):
        storage = source.ledger.storage
    refresh = SparkRefreshView(
        f"{name}_refresh",
        source,
        select=select,
        where=where,
        rebuild=rebuild,
        automation_condition=automation_condition,
        retry_policy=retry_policy,
        code_version=code_version,
        hooks=hooks,
        op_tags=op_tags,
        pool=pool,
        deps=() if isinstance(source, str) else (source.dep,),
    )
    return lance_table(
        name,
        uri=uri,
        writes=[refresh, *writes],
        key_prefix=key_prefix,
        group=group,
        discover=discover,
        checks=checks,
        profile=profile,
        computed=computed,
        automation=automation,
        freshness=freshness,
        maintenance=maintenance,
        scrub=scrub,
        storage=storage,
        storage_options=storage_options,
        storage_version=storage_version,
        description=description or _DESCRIPTION,
        owners=owners,
        tags=tags,
        kinds=kinds,
        deps=deps,
        metadata=metadata,
        operator_job=operator_job,
        samples=samples,
        columns=columns,
    )


def _source_of(of: object, prefix: Sequence[str], name: str) -> LanceTable | NamedTable | str:
    """Return the source as a declared table, as the name of one, or as a URI."""
    if isinstance(of, LanceTable):
        return of
    if not isinstance(of, str) or not of:
        raise InvalidInput(
            f"the Lance view {name!r}: of= is a table of lance_table, its name, or the URI of another table, not "
            f"{of!r:.100}"
        )
    if "." in of or ":" in of or of.startswith("/"):
        return of
    if prefix and "/" not in of and not is_declared(of):
        return NamedTable("/".join((*prefix, of)))
    return NamedTable(of)


def _uri_beside(source: LanceTable | NamedTable | str, name: str) -> str:
    """Return the location of a view that names none: a directory beside its source, with the same ending."""
    if isinstance(source, NamedTable) and not is_declared(source.label):
        raise InvalidInput(
            f"the Lance view {name!r}: the table {source.label!r} is declared later, or elsewhere, so its location is "
            "not known yet; give the view a uri="
        )
    uri = source if isinstance(source, str) else source.uri
    parent, _, last = uri.rstrip("/").rpartition("/")
    _, dot, ending = last.rpartition(".")
    return f"{parent}{'/' if parent or uri.startswith('/') else ''}{name}{dot}{ending if dot else ''}"
