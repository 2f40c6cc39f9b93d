"""Base class of all writes: name and settings in Dagster, validation at declaration, and the method that commits.

Conditions may contain parameters, `:name`, which become literals of Lance SQL; `:partition_key` is always available
in a partitioned write.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.common.sql_literals import Value, sql_literal
from lance_assets.ledger.ledger import check_name
from lance_assets.resources.lance import Access
from lance_assets.resources.spark import SPARK_RESOURCE_KEY
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import Dependency
from lance_core import Audit, Committed, InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Callable[["SparkSession", WriteContext], "DataFrame"]
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
class WriteSettings:
    """Settings that every write has in Dagster.

    With `once_per="run"`, a retry of a run, or a re-execution after a failure, does not write again, but a new run
    does. With `once_per="partition"`, each partition is written once; materializing it again reports the version that
    holds it.
    """

    deps: Iterable[Dependency] = ()
    partitions: dg.PartitionsDefinition[str] | None = None
    once_per: Literal["run", "partition"] = "run"
    branch: str | None = None
    """Branch to write to, which the table must follow; `None` writes to the main branch."""
    description: str | None = None
    code_version: str | None = None
    tags: Mapping[str, str] | None = None
    audit: Sequence[Check] = ()
    """Checks of the new version before it is published. If one with severity ERROR fails, nothing is published."""
    retry_policy: dg.RetryPolicy | None = None
    """Retry policy for errors of functions and of Spark. Conflicts are retried without it."""


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
    is_remote: ClassVar[bool] = False
    """True if the Spark session of the write is in another process, which the write launches."""

    def __post_init__(self) -> None:
        if self.name or not self.is_named_by_its_table:
            check_name(self.name, subject="a write's name")
        if self.once_per not in ("run", "partition"):
            raise self.declaration_error(f"once_per must be 'run' or 'partition', not {self.once_per!r}")
        if self.once_per == "partition" and self.partitions is None:
            raise self.declaration_error("once_per='partition' needs partitions=")
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

    @property
    def function(self) -> object:
        """Function of the user that this write calls; `None` for a write that calls none."""
        option = getattr(self, "fn", None) or getattr(self, "files", None)
        return option if callable(option) else None

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

    def metadata_of(self, table: Table) -> Mapping[str, dg.MetadataValue]:
        """Return additional metadata of the asset, for the table at the version that the step committed or found."""
        return {}

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
        return InvalidInput(f"{type(self).__name__}({self.name!r}): {reason}")

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
        if "partition_key" in used and self.partitions is None:
            raise self.declaration_error(":partition_key needs partitions=")
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
        frame = fn(ctx.spark, ctx)
        if not (hasattr(frame, "mapInArrow") and hasattr(frame, "schema")):
            raise InvalidInput(f"the function of {self.name} must return a Spark DataFrame, not {type(frame).__name__}")
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
