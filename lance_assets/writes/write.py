"""Base class of all writes: name and settings in Dagster, validation at declaration, and the method that commits.

Conditions may contain parameters, `:name`, which become literals of Lance SQL; `:partition_key` is always available
in a partitioned write.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.common.code_location import find_declaration
from lance_assets.common.sql_literals import Value, sql_literal
from lance_assets.ledger.ledger import check_name
from lance_assets.provenance.column_sources import ColumnSources
from lance_assets.resources.lance import Access
from lance_assets.resources.spark import SPARK_RESOURCE_KEY
from lance_assets.writes.asset_options import (
    REFUSED_BY_WRITES,
    AssetOptions,
    automation_condition,
    check_names,
    freshness_policy,
    resolve_synonyms,
)
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import InputTable, accepted_values, loads_value
from lance_core import Audit, Committed, InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = Callable[..., "DataFrame"]
"""Function `(spark, ctx)`, with further parameters for the inputs of `ins`."""
Parameters = Mapping[str, Value | Callable[[WriteContext], Value]]
# Quoted texts and the cast `::` match first, without a name, so that no parameter is found inside them.
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|::|:(?P<name>[A-Za-z_]\w*)""")
_QUOTED_PARAMETER = re.compile(r"(?<![:\w]):(?P<name>[A-Za-z_]\w*)")


class SparkWriteOptions(Access):
    """Options that every writing operation of `lance_assets.spark` takes."""

    intent: str
    properties: Mapping[str, str]
    audit: Audit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings(AssetOptions):
    """Settings that every write has, besides the arguments of `@dg.asset`.

    With `once_per="run"`, a retry of a run, or a re-execution after a failure, does not write again, but a new run
    does. With `once_per="partition"`, each partition is written once; materializing it again reports the version that
    holds it. With `commit_per="partition"`, a run of several partitions commits a version for each, one after another;
    with `commit_per="run"` it commits one version for all.
    """

    once_per: Literal["run", "partition"] = "run"
    commit_per: Literal["partition", "run"] = "partition"
    branch: str | None = None
    """Branch to write to, which the table must follow; `None` writes to the main branch."""
    create_branch: bool = False
    """Create the branch from the newest version of the main branch if it does not exist."""
    audit: Sequence[Check] = ()
    """Checks of the new version before it is published. If one with severity ERROR fails, nothing is published."""


@dataclass(frozen=True, slots=True)
class Write(WriteSettings, ABC):
    """Declared change of a table, which becomes one Dagster asset."""

    name: str
    summary: ClassVar[str] = ""
    """Verb phrase for the asset's default description."""
    commits_several_versions: ClassVar[bool] = False
    """True if one execution may commit more than one version."""
    is_named_by_its_table: ClassVar[bool] = False
    """True if the name may be empty until the write belongs to a table, which then derives it."""
    reports_progress: ClassVar[bool] = True
    """True if the operation reports its progress, which goes to the log of the run."""
    is_remote: ClassVar[bool] = False
    """True if the Spark session of the write is in another process, which the write launches."""
    context_arguments: ClassVar[int] = 0
    """Number of arguments that the function gets before its inputs; 0 if it can take no inputs."""

    def __new__(cls, *args: object, **options: object) -> Self:
        check_names(options, REFUSED_BY_WRITES, f"{cls.__name__}({options.get('name', *args[:1])!r})")
        write = object.__new__(cls)
        object.__setattr__(write, "declared_at", find_declaration())
        return write

    def __post_init__(self) -> None:
        if self.name or not self.is_named_by_its_table:
            check_name(self.name, subject="a write's name")
        resolve_synonyms(self, self._label)
        self._check_asset_options()
        self._check_partitions()
        self._check_audit()
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise `InvalidInput` for options that are wrong before any run."""

    @abstractmethod
    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        """Perform the change. Call `make_options` last, since its properties record the inputs that were read until
        then."""

    def for_table(self, table: str) -> "Write":
        """Return this write as one of the writes of the table with this name."""
        return self

    def with_options(self, **options: Any) -> Self:
        """Return this write, declared at the same place, with other options."""
        changed = replace(self, **options)
        object.__setattr__(changed, "declared_at", self.declared_at)
        return changed

    def default_description(self, table: str) -> str:
        """Return the description of the asset for a write without one. `table` is the name of the table in messages."""
        return f"{self.summary} the Lance table {table}."

    @property
    def function(self) -> object:
        """Function of the user that this write calls; `None` for a write that calls none."""
        option = getattr(self, "fn", None) or getattr(self, "files", None)
        return option if callable(option) else None

    @property
    def asset_config_schema(self) -> object:
        """Config schema of the asset."""
        return self.config_schema

    @property
    def resource_key(self) -> str:
        """Key of the resource that the write needs."""
        return SPARK_RESOURCE_KEY

    @property
    def reported_checks(self) -> Sequence[str]:
        """Names of the checks that the write evaluates itself, besides those of `audit`."""
        return ()

    def find_committed(self, ctx: WriteContext, intent: str) -> Committed | None:
        """Return a version that `execute` may have committed although it raised; `None` if it cannot have."""
        return None

    def column_sources(self, ctx: WriteContext) -> ColumnSources:
        """Return the columns that those of this version are computed from, as far as they are known without guessing.

        Columns of a DataFrame are columns of the table by name.
        """
        return ctx.column_sources

    def metadata_of(self, table: Table) -> Mapping[str, dg.MetadataValue]:
        """Return additional metadata of the asset, for the table at the version that the step committed or found."""
        return {}

    @property
    def uses_input_values(self) -> bool:
        """True if a function of the write gets the context, and with it the values of the inputs."""
        parameters: Parameters = getattr(self, "parameters", {})
        calls_function = self.context_arguments > 0 and callable(self.function)
        return calls_function or any(map(callable, parameters.values()))

    @property
    def _label(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _check_asset_options(self) -> None:
        automation_condition(self.automation_condition, self._label)
        freshness_policy(self.freshness_policy, self._label)
        for name in ("deps", "owners", "kinds", "required_resource_keys"):
            if isinstance(getattr(self, name), str):
                raise self.declaration_error(f"{name}= is a text; give a list")
        for name, each in self.ins.items():
            if not isinstance(each, dg.AssetIn | InputTable):
                raise self.declaration_error(
                    f"ins={{{name!r}: ...}} must be a dagster.AssetIn or a table of lance_table"
                )
        loaded = [name for name, each in self.ins.items() if loads_value(each)]
        if loaded and not self.uses_input_values:
            raise self.declaration_error(
                f"the input {loaded[0]!r} would be loaded, and no function of this write could use its value; give the "
                "asset as deps=, or dagster_type=dagster.Nothing"
            )

    def _check_partitions(self) -> None:
        if self.once_per not in ("run", "partition"):
            raise self.declaration_error(f"once_per must be 'run' or 'partition', not {self.once_per!r}")
        if self.commit_per not in ("run", "partition"):
            raise self.declaration_error(f"commit_per must be 'run' or 'partition', not {self.commit_per!r}")
        for given, name in (
            (self.once_per == "partition", "once_per='partition'"),
            (self.commit_per == "run", "commit_per='run'"),
            (self.backfill_policy is not None, "backfill_policy="),
        ):
            if given and self.partitions is None:
                raise self.declaration_error(f"{name} needs partitions=")
        if self.commit_per == "run" and self.once_per == "partition":
            raise self.declaration_error(
                "once_per='partition' commits each partition once, so it needs a version for each; leave out "
                "commit_per='run'"
            )
        if self.create_branch and self.branch is None:
            raise self.declaration_error("create_branch=True needs branch=")

    def _check_audit(self) -> None:
        if isinstance(self.audit, Check) or not all(isinstance(each, Check) for each in self.audit):
            raise self.declaration_error("audit= must be a list of checks, such as those of lance_assets.checks")
        names = [each.name for each in self.audit]
        if twice := [name for name in names if names.count(name) > 1]:
            raise self.declaration_error(f"audit= has two checks {twice[0]!r}; give each its own name")
        if self.audit and self.commits_several_versions:
            raise self.declaration_error(
                "audit= needs a write that commits one version with changed rows; this one commits several versions "
                "with the same rows"
            )

    def declaration_error(self, reason: str) -> InvalidInput:
        """Return an error that names this write."""
        return InvalidInput(f"{self._label}: {reason}")

    def check_function(self, fn: object, *, signature: str) -> None:
        if not callable(fn):
            raise self.declaration_error(f"fn must be a function {signature}")

    def check_parameters(self, parameters: Parameters, *texts: str | None) -> None:
        """Check that every parameter in the texts is given, and that every given one occurs in a text, outside
        quotes."""
        for quoted, name in _quoted_parameters(text for text in texts if text):
            if name in parameters or name == "partition_key":
                raise self.declaration_error(
                    f"{quoted} is a literal text: within quotes, :{name} is not a parameter; write :{name} without "
                    f"quotes, since it becomes a quoted literal. Concatenate more text with ||: 'day ' || :{name}"
                )
        used = {name for text in texts if text for name in _parameter_names(text)}
        if "partition_key" in used and "partition_key" not in parameters:
            if self.partitions is None:
                raise self.declaration_error(":partition_key needs partitions=")
            if self.commit_per == "run":
                raise self.declaration_error(
                    ":partition_key is one key, and with commit_per='run' a version is for several; use a parameter "
                    "that is a function of the context and reads ctx.partition_keys"
                )
        if unknown := sorted(used - {*parameters, "partition_key"}):
            raise self.declaration_error(
                f"there is no parameter :{unknown[0]}; give parameters={{{unknown[0]!r}: ...}}"
            )
        if unused := sorted(set(parameters) - used):
            raise self.declaration_error(f"the parameter {unused[0]!r} is not used; write :{unused[0]}, or remove it")

    def depends_on_partition(self, parameters: Parameters, text: str | None) -> bool:
        """Return whether the text can differ between partitions. A function of the context counts, since only a run
        can tell."""
        return "partition_key" in _parameter_names(text or "") or any(map(callable, parameters.values()))

    def compute_rows(self, fn: Rows, ctx: WriteContext) -> "DataFrame":
        """Call `fn` and check that it returns a Spark DataFrame, classic or Spark Connect."""
        values = accepted_values(fn, self.context_arguments, ctx.input_values) if ctx.input_values else {}
        frame = fn(ctx.spark, ctx, **values)
        if not (hasattr(frame, "mapInArrow") and hasattr(frame, "schema")):
            raise InvalidInput(f"the function of {self.name} must return a Spark DataFrame, not {type(frame).__name__}")
        if ctx.inputs:
            ctx.find_column_sources(frame)
        return frame


def substitute_parameters(text: str, parameters: Parameters, ctx: WriteContext) -> str:
    """Return a condition with its parameters replaced by literals."""

    def literal(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        value = ctx.partition_key if name == "partition_key" and name not in parameters else parameters[name]
        return sql_literal(value(ctx) if callable(value) else value, name)

    return _PARAMETER.sub(literal, text)


def _quoted_parameters(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield quoted texts that contain what looks like a parameter, with its name."""
    for text in texts:
        for match in _PARAMETER.finditer(text):
            if match[0][0] in "'\"":
                yield from ((match[0], inner["name"]) for inner in _QUOTED_PARAMETER.finditer(match[0]))


def _parameter_names(text: str) -> list[str]:
    return [match["name"] for match in _PARAMETER.finditer(text) if match["name"]]
