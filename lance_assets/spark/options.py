"""Options of the format `lance`: parses what `option(...)` sets, with names in lower case and values as text.

Option names have underscores here and may be spelt as in Spark: `max_rows_per_file` and `maxRowsPerFile` are the same.
The prefix `property.` marks a property of the version. `lance_core.tasks.credentials` defines the prefixes of storage
options and refuses secrets in plain text. Start with `FormatOptions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lance_assets.spark.option_names import Use, check_names
from lance_core import InvalidInput
from lance_core.tasks.credentials import contains_secret, parse_storage_options
from lance_core.tasks.driver import NewTableOptions

_PROPERTY = "property."
_FLAGS = {"true": True, "false": False}
_Default = TypeVar("_Default")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Typed access to the options that Spark passes to the format."""

    raw: Mapping[str, str] = field(repr=False)

    @property
    def uri(self) -> str:
        """URI of the table."""
        if uri := self.raw.get("path"):
            return uri
        raise InvalidInput(
            'the format "lance" has no path: give one by load(uri), save(uri) or start(uri). A table of Spark\'s '
            "catalog does not pass its options to the format; create a view instead: CREATE TEMPORARY VIEW v USING "
            "lance OPTIONS (path '...')"
        )

    @property
    def storage(self) -> dict[str, str]:
        """Storage options of the table."""
        return parse_storage_options(self.raw)

    @property
    def properties(self) -> dict[str, str]:
        """Properties to record in the version."""
        named = {key: value for key, value in self.raw.items() if key.startswith(_PROPERTY)}
        return {key.removeprefix(_PROPERTY): value for key, value in named.items()}

    def get_text(self, name: str) -> str | None:
        """Return the value of an option in either spelling; `None` if it is not set."""
        values = {self.raw.get(name), self.raw.get(name.replace("_", ""))} - {None}
        if len(values) > 1:
            raise InvalidInput(f"the option {name} is set twice, in two spellings and to different values; keep one")
        return next(iter(values), None)

    def get_names(self, option: str) -> tuple[str, ...] | None:
        """Return the names of a comma-separated option; `None` if it is not set."""
        value = self.get_text(option)
        return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())

    def get_flag(self, option: str, *, default: bool) -> bool:
        value = self.get_text(option)
        if value is None:
            return default
        if value.lower() not in _FLAGS:
            raise InvalidInput(f"the option {option} is {value!r}; it must be true or false")
        return _FLAGS[value.lower()]

    @property
    def new_table(self) -> NewTableOptions:
        """Options of the table that a write creates."""
        stable = None if self.get_text("stable_row_ids") is None else self.get_flag("stable_row_ids", default=False)
        return NewTableOptions(stable, self.get_text("storage_version"))

    def get_number(self, option: str, default: _Default) -> int | _Default:
        value = self.get_text(option)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise InvalidInput(f"the option {option} is {value!r}; it must be a whole number") from None

    def get_seconds(self, option: str) -> float | None:
        value = self.get_text(option)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise InvalidInput(f"the option {option} is {value!r}; it must be a number of seconds") from None

    @property
    def verify(self) -> str:
        """Files that are compared with their checksums, as `Table.open` takes it."""
        return self.get_text("verify") or "off"

    @property
    def trusted(self) -> bool:
        """Permission to decode files in this process."""
        return self.get_flag("trusted", default=True)

    def check_names(self, *uses: Use) -> None:
        """Raise `InvalidInput` for an option that none of these uses of the format accepts, and for exposed secrets."""
        check_names(self.raw, uses)
        for option in ("path", "bases"):
            if contains_secret(self.get_text(option) or ""):
                raise InvalidInput(
                    f"the option {option} contains a password or a signature, and Spark shows it in its user interface "
                    "and its event log; give the plain location, and pass what the store needs as storage options"
                )

    def refuse_audit(self, remedy: str) -> None:
        """Raise `InvalidInput` if the option `audit` is set; to ignore it would publish rows that no audit has seen."""
        if self.get_text("audit") is not None:
            raise InvalidInput(
                "the format has no option audit: an audit is a function, and options are text. Nothing was written; "
                f"use {remedy}"
            )
