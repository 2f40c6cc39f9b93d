"""Call settings: the form in which the function of a computed column receives rows, its rate, and the policy for calls
that fail.

    per, batch_rows, input_format     what one call receives
    concurrency, rate_limit           how many calls run at once, and how many start in a second
    timeout, retries, retry_on        when a call has failed, and whether it is repeated

A function that is declared with `async def` is awaited, so that calls of one task overlap. `005-calls-of-functions.md`
says how a rate is divided among workers. Start with `CallSettings`.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lance_core import validation
from lance_core.errors import InvalidInput

InputFormat: TypeAlias = Literal["arrow", "pandas", "numpy", "torch"]
RetriedError: TypeAlias = str | type[Exception]
BlobForm: TypeAlias = Literal["files", "bytes"]
CallUnit: TypeAlias = Literal["batch", "row"]
BLOB_ROWS = 64
"""Rows of a call with blobs among its inputs, unless `batch_rows` says otherwise."""
CONCURRENCY = 16
"""Calls of an asynchronous function that run at once in a task, unless `concurrency` says otherwise."""
_FORMATS = ("arrow", "pandas", "numpy", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """Settings of the calls of a function."""

    input_format: InputFormat = "arrow"
    """Form of a batch: `arrow`, a `pandas` DataFrame, or a dict of arrays of `numpy` or of tensors of `torch`."""
    per: CallUnit = "batch"
    """`row`: each call receives one row, as a dict of Python values, and returns its value."""
    batch_rows: int | None = None
    """Largest number of rows of a call; by default 64 with blobs among the inputs, else as many as are read at once."""
    blobs: BlobForm | None = None
    """Form of blobs: `files`, which read their bytes on demand, or `bytes`. Arrow batches cannot hold files, so there
    the default is `bytes`."""
    concurrency: int | None = None
    """Calls of an asynchronous function that run at once in each task (default: 16)."""
    rate_limit: float | None = None
    """Calls a second of all workers together, repeated calls included."""
    timeout: float | None = None
    """Seconds after which a call of an asynchronous function fails with `TimeoutError`."""
    retries: int = 0
    """Number of times that a call is repeated after an error of `retry_on`."""
    retry_on: Sequence[RetriedError] = ("ConnectionError", "TimeoutError")
    """Errors after which a call is repeated: classes, or their names, with or without their modules."""
    retry_seconds: float = 1.0
    """Wait before the first repetition, which doubles each time. An error with a number `retry_after` sets it."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Resources of each task, such as `{"gpu": 1, "cpus": 4}`."""

    def check_calls(self, what: str, function: object) -> None:
        """Raise `InvalidInput` for settings that contradict each other. `function` is `None` if it is not known yet."""
        self._check_form(what)
        for name in ("batch_rows", "concurrency"):
            if getattr(self, name) is not None:
                validation.check_integer(getattr(self, name), name, at_least=1, too_small="it must be at least 1")
        validation.check_integer(self.retries, "retries", at_least=0, too_small="it must not be negative")
        for name in ("rate_limit", "timeout", "retry_seconds"):
            number: object = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or number <= 0):
                raise InvalidInput(f"{what}: {name}={number!r}: it must be a positive number")
        self._check_retry_on(what)
        self._check_resources(what)
        if function is not None:
            self.check_asynchronous(what, function)

    def _check_form(self, what: str) -> None:
        """Raise `InvalidInput` unless the form in which a call receives rows is clear."""
        if self.input_format not in _FORMATS:
            raise InvalidInput(f"{what}: input_format={self.input_format!r}: it must be one of {', '.join(_FORMATS)}")
        if self.per not in ("batch", "row"):
            raise InvalidInput(f"{what}: per={self.per!r}: it must be 'batch' or 'row'")
        if self.per == "row" and (self.batch_rows is not None or self.input_format != "arrow"):
            raise InvalidInput(
                f"{what}: with per='row' a call receives a dict; leave out batch_rows= and input_format="
            )
        if self.blobs not in (None, "files", "bytes"):
            raise InvalidInput(f"{what}: blobs={self.blobs!r}: it must be 'files' or 'bytes'")
        if self.blobs == "files" and self.receives_arrow:
            raise InvalidInput(
                f"{what}: an Arrow batch cannot hold files; give blobs='bytes', another input_format=, or per='row'"
            )

    def check_asynchronous(self, what: str, function: object) -> None:
        """Raise `InvalidInput` if a setting needs an asynchronous function and this is none."""
        for name in ("concurrency", "timeout"):
            if getattr(self, name) is not None and not is_asynchronous(function):
                raise InvalidInput(
                    f"{what}: {name}= needs a function that is declared with async def; a plain function runs alone in "
                    "its task and cannot be interrupted"
                )

    @property
    def receives_arrow(self) -> bool:
        return self.per == "batch" and self.input_format == "arrow"

    @property
    def reads_blobs(self) -> bool:
        """True if the function receives the bytes of blobs."""
        return self.receives_arrow if self.blobs is None else self.blobs == "bytes"

    @property
    def retried_names(self) -> frozenset[str]:
        """Names of the errors of `retry_on`."""
        return frozenset(each if isinstance(each, str) else class_name(each) for each in self.retry_on)

    def _check_retry_on(self, what: str) -> None:
        names: object = self.retry_on
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InvalidInput(f"{what}: retry_on= is a list of errors, not {names!r:.100}")
        for each in names:
            if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, Exception)):
                raise InvalidInput(f"{what}: retry_on= has {each!r:.100}, which is no error or name of one")

    def _check_resources(self, what: str) -> None:
        resources: object = self.resources
        if not isinstance(resources, Mapping):
            raise InvalidInput(f"{what}: resources= is a mapping of names to amounts, not {resources!r:.100}")
        for name, amount in resources.items():
            if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
                raise InvalidInput(
                    f"{what}: resources={{{name!r}: {amount!r}}} is not the name of a resource and an amount"
                )
            if amount <= 0 or (name == "cpus" and amount != int(amount)):
                raise InvalidInput(
                    f"{what}: resources={{{name!r}: {amount!r}}}: give a positive amount; cpus are whole"
                )


def is_asynchronous(function: object) -> bool:
    """Return whether calls of the function return coroutines."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  # of an object with `async def __call__`
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def class_name(error: type[BaseException]) -> str:
    """Return the name of a class of errors with its module; names of builtins have none."""
    module = error.__module__
    return error.__qualname__ if module == "builtins" else f"{module}.{error.__qualname__}"
