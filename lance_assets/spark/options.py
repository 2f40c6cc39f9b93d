"""What `option(...)` said, as the format `lance` reads it. To Spark all of it is text, and names are in small letters.

Names are written with underscores here, and understood as Spark writes them too: `max_rows_per_file` and
`maxRowsPerFile` are the same. `property.` stands before the name of a property of a version; what stands before those
of storage options, and which of them are refused, `lance_core.tasks.credentials` tells. Start with `FormatOptions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lance_core import InvalidInput
from lance_core.tasks.credentials import parse_storage_options

_PROPERTY = "property."
_FLAGS = {"true": True, "false": False}
_Default = TypeVar("_Default")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    raw: Mapping[str, str] = field(repr=False)

    @property
    def uri(self) -> str:
        if uri := self.raw.get("path"):
            return uri
        raise InvalidInput(
            'the format "lance" is told no path: give one by load(uri), save(uri) or start(uri). A table of Spark\'s '
            "catalog loses its options on the way; make a view: CREATE TEMPORARY VIEW v USING lance "
            "OPTIONS (path '...')"
        )

    def get_text(self, name: str) -> str | None:
        both = {self.raw.get(name), self.raw.get(name.replace("_", ""))} - {None}
        if len(both) > 1:
            raise InvalidInput(f"the option {name} is given twice, in two spellings; keep one")
        return next(iter(both), None)

    @property
    def storage(self) -> dict[str, str]:
        return parse_storage_options(self.raw)

    @property
    def properties(self) -> dict[str, str]:
        named = {key: value for key, value in self.raw.items() if key.startswith(_PROPERTY)}
        return {key.removeprefix(_PROPERTY): value for key, value in named.items()}

    def get_names(self, option: str) -> tuple[str, ...] | None:
        given = self.get_text(option)
        return None if given is None else tuple(name.strip() for name in given.split(",") if name.strip())

    def get_flag(self, option: str, *, default: bool) -> bool:
        given = self.get_text(option)
        if given is None:
            return default
        if given.lower() not in _FLAGS:
            raise InvalidInput(f"the option {option} is {given!r}: it is true or false")
        return _FLAGS[given.lower()]

    def get_number(self, option: str, default: _Default) -> int | _Default:
        given = self.get_text(option)
        if given is None:
            return default
        try:
            return int(given)
        except ValueError:
            raise InvalidInput(f"the option {option} is {given!r}: it is a whole number") from None

    def get_seconds(self, option: str) -> float | None:
        given = self.get_text(option)
        try:
            return None if given is None else float(given)
        except ValueError:
            raise InvalidInput(f"the option {option} is {given!r}: it is a number of seconds") from None

    def refuse_for_streams(self, why: Mapping[str, str]) -> None:
        """Refuse options that mean something elsewhere."""
        for option, instead in why.items():
            if self.get_text(option) is not None:
                raise InvalidInput(f"the option {option} is not for streams: {instead}")

    def refuse_audit(self, instead: str) -> None:
        """Without it the rows would be there for all to see, and nobody would have looked."""
        if self.get_text("audit") is not None:
            raise InvalidInput(
                "the format takes no option audit: an audit is a function, and options are text. Nothing was written; "
                f"use {instead}"
            )
