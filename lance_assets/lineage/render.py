"""Where a version comes from, in words for a line, as JSON and as markdown. Pure.

Places are shown as tables name them, but for what may be a credential.
"""

from collections.abc import Iterator, Sequence

from lance_assets.common.text import escape_markdown
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName
from lance_core.shell import without_secrets

_RUN_LETTERS = 8
"""As Dagster's pages show the id of a run."""
_LISTED_MAX = 1000
_ROWS_MAX = 20
_CHARACTERS_MAX = 200
"""An event is not to grow with what a table says."""
_WITH_MANIFESTS = "s3+ddb://"


def without_credentials(uri: str) -> str:
    """Without credentials, whoever wrote it. Which table of DynamoDB versions are reserved in stays: it is a name."""
    shown = without_secrets(uri)
    if not uri.lower().startswith(_WITH_MANIFESTS):
        return shown
    query = uri.partition("?")[2]
    return f"{shown}?{query}" if query.startswith("ddbTableName=") and "&" not in query else shown


def display_name(name: VersionName) -> str:
    return f"{without_credentials(name.uri)}@{name.version}"


def short_run_id(run_id: str | None) -> str:
    return (run_id or "")[:_RUN_LETTERS]


def version_range(versions: Sequence[int]) -> str:
    """
    >>> span(range(3, 6)), span(range(3, 4))
    ('3-5', '3')
    """
    if not versions:
        return ""
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"


def relation_text(source: InputVersion, own_uri: str) -> str:
    """As words behind the version that has it."""
    where = str(source.name.version) if source.name.uri == own_uri else display_name(source.name)
    return f"{source.kind.value} {where}"


def origin_notes(origin: Origin) -> Iterator[str]:
    """What is out of the ordinary in how it was made."""
    for source in origin.sources:
        if source.kind is not AncestryKind.READ:
            yield relation_text(source, origin.name.uri)
    if origin.rebased_over:
        yield f"rebased over {version_range(origin.rebased_over)}"
    if origin.together:
        yield f"{len(origin.together)} appends together"
    if origin.unreadable_inputs is not None:
        yield "its record of inputs cannot be read"


def as_json(facts: Origin | Unknown) -> dict[str, object]:
    name = {"uri": without_credentials(facts.name.uri), "version": facts.name.version}
    if isinstance(facts, Unknown):
        return {**name, "unknown": facts.reason}
    return {
        **name,
        "operation": facts.operation,
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
    """What it comes from, as a table; empty where it names nothing but the version before it."""
    if not origin.sources:
        return ""
    rows = [
        f"| {escape_markdown(shown[:_CHARACTERS_MAX])} | {each.name.version} | {each.kind.value} |"
        for each in origin.sources[:_ROWS_MAX]
        for shown in [without_credentials(each.name.uri)]
    ]
    left = len(origin.sources) - _ROWS_MAX
    more = [f"\n… and {left:,} more"] if left > 0 else []
    return "\n".join(["| table | version | how |", "|---|---|---|", *rows, *more])
