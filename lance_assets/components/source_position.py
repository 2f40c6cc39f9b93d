"""Source position: a position in a YAML file, its rendered value, and errors with file, line and name.

Only `{{ ... }}` in a text is rendered, by Dagster; nothing else is evaluated. `'Oslo'` stays an SQL literal, which
Dagster's own rendering would evaluate as Python and strip of its quotes.
"""

import os
import re
from dataclasses import dataclass

import dagster as dg

from lance_assets.common.code_location import CodeLocation
from lance_core import InvalidInput

_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_ENVIRONMENT = re.compile(r"""\{\{\s*env(?:\.(?P<dot>\w+)|\(\s*['"](?P<call>\w+)['"]\s*\))\s*\}\}""")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Position of a value in a YAML file."""

    context: dg.ResolutionContext

    def child(self, key: str | int) -> "SourcePosition":
        """Return the position of an item or option of this value."""
        return SourcePosition(self.context.at_path(key))

    @property
    def name(self) -> str:
        """Path of the option, such as `writes[0].fn`."""
        path = self.context.path[1:] if self.context.path[:1] == ["attributes"] else self.context.path
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")

    @property
    def module(self) -> str | None:
        """Python module of the folder that contains the file, or `None` if the folder is in no package."""
        loading = dg.ComponentLoadContext.from_resolution_context(self.context)
        return loading.defs_relative_module_name(loading.path) if loading.path.exists() else None

    @property
    def location(self) -> CodeLocation | None:
        """File and line of this value; `None` if Dagster does not know them."""
        tree = self.context.source_position_tree
        if tree is None:
            return None
        position = tree.lookup_closest_and_path(self.context.path, None)[0]
        return CodeLocation(os.path.abspath(position.filename), position.start.line)

    def error(self, reason: str) -> InvalidInput:
        """Return an error at this position. It shows the value only if `reason` does, since the value may be a
        secret."""
        tree = self.context.source_position_tree
        where = f"{tree.lookup_closest_and_path(self.context.path, None)[0]}: " if tree else ""
        return InvalidInput(f"{where}{self.name or 'attributes'}: {reason}")

    def render(self, raw: object) -> object:
        """Render the templates in a value. A single template may return any object; a template within text is
        converted to text."""
        if not isinstance(raw, str):
            return raw
        if _TEMPLATE.fullmatch(raw.strip()):
            return self._render_template(raw.strip())
        return _TEMPLATE.sub(lambda match: str(self._render_template(match[0])), raw)

    def _render_template(self, template: str) -> object:
        name = environment_variable(template)
        if name is None:
            return self.context.resolve_value(template)
        if name not in os.environ:
            raise self.error(f"the environment variable {name} is not set; set it in the process that loads this code")
        return os.environ[name]


def environment_variable(raw: object) -> str | None:
    """Return the name of the environment variable if the value is a template of one variable only."""
    match = _ENVIRONMENT.fullmatch(raw.strip()) if isinstance(raw, str) else None
    return (match["dot"] or match["call"]) if match else None
