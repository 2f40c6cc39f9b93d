"""Lineage rendering: origins as lines of text, as JSON and as Markdown. Pure.

URIs are shown as tables record them, without credentials.
"""

from collections.abc import Iterator, Sequence

from lance_assets.common.text import escape_markdown
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName
from lance_core.shell import without_secrets

_RUN_LETTERS = 8
"""Length of the short run ids on Dagster's pages."""
_LISTED_MAX = 1000
_ROWS_MAX = 20
_CHARACTERS_MAX = 200
"""Bounds the size of an event, since a table can record URIs of any length."""
_DYNAMODB_PREFIX = "s3+ddb://"


def without_credentials(uri: str) -> str:
    """Remove credentials from a URI of any origin. The name of the DynamoDB table that reserves versions stays."""
    shown = without_secrets(uri)
    if not uri.lower().startswith(_DYNAMODB_PREFIX):
        return shown
    query = uri.partition("?")[2]
    return f"{shown}?{query}" if query.startswith("ddbTableName=") and "&" not in query else shown


def display_name(name: VersionName) -> str:
    return f"{without_credentials(name.uri)}@{name.version}"


def short_run_id(run_id: str | None) -> str:
    return (run_id or "")[:_RUN_LETTERS]


def version_range(versions: Sequence[int]) -> str:
    """Return the first and the last version as a range.

    >>> version_range(range(3, 6)), version_range(range(3, 4))
    ('3-5', '3')
    """
    if not versions:
        return ""
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"


def relation_text(source: InputVersion, own_uri: str) -> str:
    """Return the relation to an ancestor and its name, which omits the URI if the ancestor is in the same table."""
    name = str(source.name.version) if source.name.uri == own_uri else display_name(source.name)
    return f"{source.kind.value} {name}"


def origin_notes(origin: Origin) -> Iterator[str]:
    """Yield notes about unusual facts of an origin."""
    for source in origin.sources:
        if source.kind is not AncestryKind.READ:
            yield relation_text(source, origin.name.uri)
    if origin.rebased_over:
        yield f"rebased over {version_range(origin.rebased_over)}"
    if origin.together:
        yield f"combines {len(origin.together)} appends"
    if origin.unreadable_inputs is not None:
        yield "its recorded inputs cannot be parsed"


def as_json(facts: Origin | Unknown) -> dict[str, object]:
    name = {"uri": without_credentials(facts.name.uri), "version": facts.name.version}
    if isinstance(facts, Unknown):
        return {**name, "unknown": facts.reason}
    return {
        **name,
        "action": facts.action,
        "operation": facts.operation,
        "engine": facts.writer,
        "timestamp": facts.timestamp.isoformat(),
        "rows": facts.rows,
        "rows_added": facts.rows_added,
        "rows_removed": facts.rows_removed,
        "parent": facts.parent,
        "planned_on": facts.planned_on,
        "rebased_over": list(facts.rebased_over[:_LISTED_MAX]),
        "transaction": facts.uuid,
        "together": list(facts.together),
        "run_id": facts.run_id,
        "asset": facts.asset,
        "partition": facts.partition,
        "code_location": facts.code_location,
        "intent": facts.intent,
        "inputs": [_input_json(each) for each in facts.sources if each.kind is AncestryKind.READ],
        "sources": [
            {**_input_json(each), "bond": each.kind.value}
            for each in facts.sources
            if each.kind is not AncestryKind.READ
        ],
        "unreadable_inputs": facts.unreadable_inputs,
    }


def _input_json(source: InputVersion) -> dict[str, object]:
    return {"uri": without_credentials(source.name.uri), "version": source.name.version}


def as_markdown(origin: Origin) -> str:
    """Return a table of the sources, or an empty text if only the parent is known."""
    if not origin.sources:
        return ""
    rows = [
        f"| {escape_markdown(uri[:_CHARACTERS_MAX])} | {source.name.version} | {source.kind.value} |"
        for source in origin.sources[:_ROWS_MAX]
        for uri in [without_credentials(source.name.uri)]
    ]
    left = len(origin.sources) - _ROWS_MAX
    more = [f"\n… and {left:,} more"] if left > 0 else []
    return "\n".join(["| table | version | how |", "|---|---|---|", *rows, *more])
