"""A place in a YAML file: what stands there with its templates filled in, and errors that name file, line and name.

A text is what is written; `{{ ... }}` in it becomes what Dagster makes of it. Nothing else in it is evaluated: `'Oslo'`
stays a literal of SQL, where Dagster's own rendering would take it for Python and drop the quotes.
"""

import os
import re
from dataclasses import dataclass

import dagster as dg

from lance_core import InvalidInput

_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_ENVIRONMENT = re.compile(r"""\{\{\s*env(?:\.(?P<dot>\w+)|\(\s*['"](?P<call>\w+)['"]\s*\))\s*\}\}""")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    context: dg.ResolutionContext

    def child(self, key: str | int) -> "SourcePosition":
        return SourcePosition(self.context.at_path(key))

    @property
    def name(self) -> str:
        """As `writes[0].fn`."""
        path = self.context.path[1:] if self.context.path[:1] == ["attributes"] else self.context.path
        return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")

    @property
    def module(self) -> str | None:
        """Of the folder that holds the file, where that is in a package."""
        loading = dg.ComponentLoadContext.from_resolution_context(self.context)
        return loading.defs_relative_module_name(loading.path) if loading.path.exists() else None

    def error(self, reason: str) -> InvalidInput:
        """What was written is not shown unless `reason` shows it: it may be a secret."""
        tree = self.context.source_position_tree
        where = f"{tree.lookup_closest_and_path(self.context.path, None)[0]}: " if tree else ""
        return InvalidInput(f"{where}{self.name or 'attributes'}: {reason}")

    def render(self, raw: object) -> object:
        """What one template alone gives may be any object; one among other text becomes text."""
        if not isinstance(raw, str):
            return raw
        if _TEMPLATE.fullmatch(raw.strip()):
            return self._render_template(raw.strip())
        return _TEMPLATE.sub(lambda found: str(self._render_template(found[0])), raw)

    def _render_template(self, template: str) -> object:
        name = environment_variable(template)
        if name is None:
            return self.context.resolve_value(template)
        if name not in os.environ:
            raise self.error(f"the environment variable {name} is not set here; set it where this code is loaded")
        return os.environ[name]


def environment_variable(raw: object) -> str | None:
    """Of a value that is one variable of the environment and nothing else."""
    found = _ENVIRONMENT.fullmatch(raw.strip()) if isinstance(raw, str) else None
    return (found["dot"] or found["call"]) if found else None
