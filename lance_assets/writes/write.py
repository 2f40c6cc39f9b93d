"""What every write has: a name in Dagster, when it is the same write, and how it says what changes.

Text of conditions may hold parameters, `:name`, which become literals of Lance's SQL: `:partition_key` is always there.
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
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import Dependency
from lance_core import Audit, Committed, InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Callable[["SparkSession", WriteContext], "DataFrame"]
Parameters = Mapping[str, Value | Callable[[WriteContext], Value]]
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|::|:(?P<name>[A-Za-z_]\w*)""")

_QUOTED_PARAMETER = re.compile(r"(?<![:\w]):(?P<name>[A-Za-z_]\w*)")


class SparkWriteOptions(Access):
    """What every op of `lance_assets.spark` that writes takes."""

    intent: str
    properties: Mapping[str, str]
    audit: Audit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """`once_per="run"`: a retried run, or one executed again because it had failed, does not write again; a deliberate
    new one does. `once_per="partition"`: a partition is written once, ever; materialising it again reports the version
    that holds it."""

    deps: Iterable[Dependency] = ()
    partitions: dg.PartitionsDefinition[str] | None = None
    once_per: Literal["run", "partition"] = "run"
    branch: str | None = None
    """Where it writes, if not to the main line; a branch that the table follows."""
    description: str | None = None
    code_version: str | None = None
    tags: Mapping[str, str] | None = None
    audit: Sequence[Check] = ()
    """Checks of the version that it would make, before anybody can see it. One that fails has nothing published, unless
    its severity is a warning."""
    retry_policy: dg.RetryPolicy | None = None
    """For errors of functions and of Spark; conflicts are retried without it."""


@dataclass(frozen=True, slots=True)
class Write(WriteSettings, ABC):
    name: str
    summary: ClassVar[str] = ""
    """What it does, for a page of Dagster that says nothing else."""
    commits_several_versions: ClassVar[bool] = False
    """Whether it may commit more than one version."""
    is_named_by_its_table: ClassVar[bool] = False
    """Whether it needs no name before it is one of a table's writes."""

    def __post_init__(self) -> None:
        if self.name or not self.is_named_by_its_table:
            check_name(self.name, subject="a write's name")
        if self.once_per not in ("run", "partition"):
            raise self.declaration_error(f"once_per is 'run' or 'partition', not {self.once_per!r}")
        if self.once_per == "partition" and self.partitions is None:
            raise self.declaration_error("once_per='partition' needs partitions=")
        self._check_audit()
        self.check()

    @abstractmethod
    def check(self) -> None:
        """What can be known to be wrong when it is declared."""

    @abstractmethod
    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        """Do it. `make_options` is asked for last, when all that is read has been noted."""

    def for_table(self, table: str) -> "Write":
        """As one of the writes of the table of this name."""
        return self

    def metadata_of(self, table: Table) -> Mapping[str, dg.MetadataValue]:
        """What its asset tells besides, of the table at the version that it made or found."""
        return {}

    def _check_audit(self) -> None:
        if isinstance(self.audit, Check) or not all(isinstance(each, Check) for each in self.audit):
            raise self.declaration_error("audit= is a list of checks, such as those of lance_assets.checks")
        names = [each.name for each in self.audit]
        if twice := [name for name in names if names.count(name) > 1]:
            raise self.declaration_error(f"audit= has two checks {twice[0]!r}; give each its own name")
        if self.audit and self.commits_several_versions:
            raise self.declaration_error(
                "audit= is for one version that changes rows; this makes several, of the same rows"
            )

    def declaration_error(self, reason: str) -> InvalidInput:
        return InvalidInput(f"{type(self).__name__}({self.name!r}): {reason}")

    def check_function(self, fn: object, *, signature: str) -> None:
        if not callable(fn):
            raise self.declaration_error(f"fn must be a function {signature}")

    def check_parameters(self, parameters: Parameters, *texts: str | None) -> None:
        """Every name that a text has is given, and every name that is given is in a text, outside of quotes."""
        for quoted, name in _quoted_parameters(text for text in texts if text):
            if name in parameters or name == "partition_key":
                raise self.declaration_error(
                    f"{quoted} is that very text, for within quotes :{name} is no parameter; write :{name} without "
                    f"quotes, it becomes a literal with quotes of its own. More text is joined to it: 'day ' || :{name}"
                )
        used = {name for text in texts if text for name in _parameter_names(text)}
        if "partition_key" in used and self.partitions is None:
            raise self.declaration_error(":partition_key needs partitions=")
        if unknown := sorted(used - {*parameters, "partition_key"}):
            raise self.declaration_error(
                f"there is no parameter :{unknown[0]}; give parameters={{{unknown[0]!r}: ...}}"
            )
        if unused := sorted(set(parameters) - used):
            raise self.declaration_error(f"the parameter {unused[0]!r} is not used: nothing says :{unused[0]}")

    def depends_on_partition(self, parameters: Parameters, text: str | None) -> bool:
        """As far as can be told: what a function of the context does, only a run knows."""
        return "partition_key" in _parameter_names(text or "") or any(map(callable, parameters.values()))

    def compute_rows(self, fn: Rows, ctx: WriteContext) -> "DataFrame":
        """Classic and Spark Connect frames alike."""
        frame = fn(ctx.spark, ctx)
        if not (hasattr(frame, "mapInArrow") and hasattr(frame, "schema")):
            raise InvalidInput(f"the function of {self.name} must return a Spark DataFrame, not {type(frame).__name__}")
        return frame


def substitute_parameters(text: str, parameters: Parameters, ctx: WriteContext) -> str:
    """A condition with its parameters as literals."""

    def literal(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0]
        value = ctx.partition_key if name == "partition_key" and name not in parameters else parameters[name]
        return sql_literal(value(ctx) if callable(value) else value, name)

    return _PARAMETER.sub(literal, text)


def _quoted_parameters(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What looks like a parameter and is text."""
    for text in texts:
        for found in _PARAMETER.finditer(text):
            if found[0][0] in "'\"":
                yield from ((found[0], each["name"]) for each in _QUOTED_PARAMETER.finditer(found[0]))


def _parameter_names(text: str) -> list[str]:
    return [found["name"] for found in _PARAMETER.finditer(text) if found["name"]]
