"""Asset options: the arguments of `@dg.asset` that writes and tables take, and the reasons why they refuse others.

`AssetOptions` has one field for each argument that a write takes. `SYNONYMS` maps a second name to the field that it
sets; both at once are refused. An argument of `@dg.asset` that is no field has its reason in `REFUSED_BY_WRITES`, and
one that `lance_table` does not take has its reason in `REFUSED_BY_TABLES`. A test compares these tables with Dagster's
signature and with docs/dagster.md. Start with `AssetOptions`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import dagster as dg

from lance_assets.common.code_location import Located
from lance_assets.writes.dependencies import Dependency, Input
from lance_core import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")
ConditionName = Literal["eager", "on_missing", "on_new_version"]
Condition: TypeAlias = dg.AutomationCondition[Any]

SYNONYMS: Mapping[str, str] = {
    "partitions_def": "partitions",
    "group": "group_name",
    "automation": "automation_condition",
    "freshness": "freshness_policy",
}
"""Second names of options, each with the field that holds its value."""

_OWN_STORAGE = "a write stores its rows in the table itself and returns no value for an I/O manager"
_KEY = "the key of a write is the key prefix of its table and name="
REFUSED_BY_WRITES: Mapping[str, str] = {
    "key": _KEY,
    "key_prefix": _KEY,
    "io_manager_key": _OWN_STORAGE,
    "io_manager_def": _OWN_STORAGE,
    "dagster_type": _OWN_STORAGE,
    "output_required": "a write reports a result in every run, also if it has written nothing",
    "check_specs": (
        "give checks of a version before it is published as audit=, and checks of all versions as checks= of the table"
    ),
    "is_virtual": "a write runs code",
    "compute_kind": "Dagster has replaced it; use kinds=",
    "non_argument_deps": "Dagster has replaced it; use deps=",
    "auto_materialize_policy": "Dagster has replaced it; use automation_condition=",
    "legacy_freshness_policy": "Dagster has replaced it; use freshness_policy=",
}
"""Arguments of `@dg.asset` that a write does not take, with the reason."""

_OF_THE_WRITE = "nothing runs for the table itself; give it to a write"
REFUSED_BY_TABLES: Mapping[str, str] = {
    "key": "the key of a table is key_prefix= and name=",
    "partitions": "the partitions of a table are its versions; give partitions= to a write",
    "partitions_def": "the partitions of a table are its versions; give partitions= to a write",
    "ins": "nothing is loaded for the table itself; give ins= to a write, or deps= to the table",
    "io_manager_key": _OWN_STORAGE,
    "io_manager_def": _OWN_STORAGE,
    "dagster_type": _OWN_STORAGE,
    "output_required": "a table has no output",
    "check_specs": "give checks=",
    "is_virtual": "a table is stored data",
    **dict.fromkeys(
        (
            "backfill_policy",
            "code_version",
            "config_schema",
            "hooks",
            "op_tags",
            "pool",
            "required_resource_keys",
            "resource_defs",
            "retry_policy",
        ),
        _OF_THE_WRITE,
    ),
    **{name: REFUSED_BY_WRITES[name] for name in ("compute_kind", "non_argument_deps")},
    **{name: REFUSED_BY_WRITES[name] for name in ("auto_materialize_policy", "legacy_freshness_policy")},
}
"""Arguments of `@dg.asset` that `lance_table` does not take, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetOptions(Located):
    """Arguments of `@dg.asset` that every write takes, with their meaning in Dagster."""

    deps: Iterable[Dependency] = ()
    ins: Mapping[str, Input] = field(default_factory=dict)
    """Inputs by name: an `AssetIn`, or a table, whose newest version the function gets as a Spark DataFrame."""
    partitions: dg.PartitionsDefinition[str] | None = None
    backfill_policy: dg.BackfillPolicy | None = None
    """Policy that lets one run write several partitions; `commit_per` decides how many versions it commits."""
    description: str | None = None
    metadata: Mapping[str, object] | None = None
    """Metadata of the asset. That of its materializations is `ctx.metadata`."""
    tags: Mapping[str, str] | None = None
    op_tags: Mapping[str, object] | None = None
    owners: Sequence[str] | None = None
    kinds: Collection[str] | None = None
    """Kinds instead of "spark" and "lance". Dagster allows three."""
    group_name: str | None = None
    """Asset group; by default that of the table."""
    automation_condition: Condition | ConditionName | None = None
    freshness_policy: dg.FreshnessPolicy | timedelta | None = None
    code_version: str | None = None
    retry_policy: dg.RetryPolicy | None = None
    """Retry policy for errors of functions and of Spark. Conflicts are retried without it."""
    hooks: Collection[dg.HookDefinition] | None = None
    pool: str | None = None
    """Pool of the step; by default one that the writes of the table share."""
    config_schema: object = None
    required_resource_keys: Collection[str] = ()
    resource_defs: Mapping[str, object] | None = None
    partitions_def: dg.PartitionsDefinition[str] | None = None
    group: str | None = None
    automation: Condition | ConditionName | None = None
    freshness: dg.FreshnessPolicy | timedelta | None = None


def check_names(options: Iterable[str], refused: Mapping[str, str], subject: str) -> None:
    """Raise `InvalidInput` for the first option that is refused, with its reason."""
    for name in options:
        if name in refused:
            raise InvalidInput(f"{subject} takes no {name}=: {refused[name]}")


def one_of_synonyms(first: R | None, second: R | None, names: tuple[str, str], subject: str) -> R | None:
    """Return the value of an option that has two names. Raise `InvalidInput` if both are given."""
    if first is not None and second is not None:
        raise InvalidInput(f"{subject}: {names[0]}= and {names[1]}= are the same option; give one of them")
    return second if first is None else first


def resolve_synonyms(options: AssetOptions, subject: str) -> None:
    """Move the values of second names to the fields that hold them."""
    for synonym, name in SYNONYMS.items():
        value = one_of_synonyms(getattr(options, synonym), getattr(options, name), (synonym, name), subject)
        object.__setattr__(options, name, value)
        object.__setattr__(options, synonym, None)


def automation_condition(value: object, subject: str, table: dg.AssetKey | None = None) -> Condition | None:
    """Return the automation condition that an option names or is. `table` is the asset key of the table of a write."""
    match value:
        case None | dg.AutomationCondition():
            return value
        case "on_new_version":
            # A tick in which versions were recorded requests one run. No memory is needed: runs of one table wait for
            # each other in its pool, and a run that finds nothing to do commits no version.
            return dg.AutomationCondition.asset_matches(
                table or dg.AssetKey("table"), dg.AutomationCondition.newly_updated()
            ).with_label("on_new_version")
        case "eager":
            return dg.AutomationCondition.eager()
        case "on_missing":
            return dg.AutomationCondition.on_missing()
    raise InvalidInput(
        f"{subject}: automation_condition= must be a dagster.AutomationCondition, 'eager', 'on_missing' or "
        "'on_new_version', not "
        f"{value!r:.100}"
    )


def freshness_policy(value: object, subject: str) -> dg.FreshnessPolicy | None:
    """Return the freshness policy; a `timedelta` is the largest age."""
    if isinstance(value, timedelta):
        if value < timedelta(minutes=1):
            raise InvalidInput(f"{subject}: freshness= must be a minute or more, not {value}")
        return dg.FreshnessPolicy.time_window(fail_window=value)
    if value is None or isinstance(value, dg.FreshnessPolicy):
        return value
    raise InvalidInput(f"{subject}: freshness= must be a timedelta or a FreshnessPolicy, not {value!r:.100}")


def refuse_options(refused: Mapping[str, str], *, subject: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function with keyword options: a refused one raises `InvalidInput` with its reason
    instead of a `TypeError`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check_names(kwargs, refused, subject)
            return function(*args, **kwargs)

        return checked

    return decorate
