"""Option names of the format `lance`: lists those of each use, and advice for options of other formats.

A misspelt option that is ignored reads the newest version or all rows without an error, so an unknown name is refused
with the nearest name, and a name of Delta Lake, Iceberg or Spark's file formats with ours for the same thing. Spark
passes names in lower case. Values are never read here. Start with `check_names`.
"""

import difflib
from collections.abc import Iterable
from enum import Enum

from lance_core import InvalidInput
from lance_core.tasks.credentials import check_storage_option_names, is_storage_option


class Use(Enum):
    """Use of the format, and how a message names it."""

    READ = "batch reads"
    APPEND = "batch writes"
    OVERWRITE = "overwrites"
    STREAM_READ = "streams that read"
    STREAM_WRITE = "streams that write"


_READS, _WRITES = frozenset((Use.READ,)), frozenset((Use.APPEND, Use.OVERWRITE))
_EVERYWHERE = frozenset(Use)
# A view passes its options to reads and to writes alike, so each accepts those of the other that change no result.
_SELECTS_ROWS = frozenset((Use.READ, Use.STREAM_READ, Use.APPEND))
OPTIONS: dict[str, frozenset[Use]] = {
    "path": _EVERYWHERE,
    "branch": _EVERYWHERE,
    "manifest_store": _EVERYWHERE,
    "bases": _EVERYWHERE,
    "trusted": _EVERYWHERE,
    "verify": _EVERYWHERE,
    "version": _READS,
    "tag": _READS,
    "columns": _SELECTS_ROWS,
    "filter": _SELECTS_ROWS,
    "with_row_id": _READS | {Use.APPEND},
    "with_row_address": _READS | {Use.APPEND},
    "intent": _READS | _WRITES,
    "replace_schema": _READS | _WRITES,
    "create": _READS | _WRITES | {Use.STREAM_WRITE},
    "stable_row_ids": _READS | _WRITES | {Use.STREAM_WRITE},
    "storage_version": _READS | _WRITES | {Use.STREAM_WRITE},
    "max_rows_per_file": _READS | _WRITES | {Use.STREAM_WRITE},
    "max_bytes_per_file": _READS | _WRITES | {Use.STREAM_WRITE},
    "retries": _READS | _WRITES | {Use.STREAM_WRITE},
    "starting_version": frozenset((Use.STREAM_READ,)),
    "starting_timestamp": frozenset((Use.STREAM_READ,)),
    "max_rows_per_trigger": frozenset((Use.STREAM_READ,)),
    "max_files_per_trigger": frozenset((Use.STREAM_READ,)),
    "max_versions_per_trigger": frozenset((Use.STREAM_READ,)),
    "on_change": frozenset((Use.STREAM_READ,)),
    "poll_seconds": frozenset((Use.STREAM_READ,)),
    "checkpoint_location": frozenset((Use.STREAM_READ, Use.STREAM_WRITE)),
    "query_name": frozenset((Use.STREAM_WRITE,)),
}
_NAMES = {spelling: name for name in OPTIONS for spelling in (name, name.replace("_", ""))}
_PREFIXES = ("storage.", "secret.", "property.")
_OF_CATALOG_TABLES = ("location", "owner", "provider", "comment", "external", "is_managed_location")
"""Options that Spark adds for a table of its catalog, whose own options it drops."""
_STREAMS_ONLY = "it applies to streams (spark.readStream); a batch read of one version takes version"
_REMEDIES: dict[tuple[str, Use], str] = {
    ("version", Use.STREAM_READ): "use starting_version to choose where the stream begins",
    ("tag", Use.STREAM_READ): "use starting_version to choose where the stream begins",
    ("version", Use.APPEND): "a write adds to the newest version of the table or of its branch",
    ("version", Use.OVERWRITE): "a write replaces the newest version of the table or of its branch",
    ("tag", Use.APPEND): "a write adds to the newest version of the table or of its branch",
    ("tag", Use.OVERWRITE): "a write replaces the newest version of the table or of its branch",
    ("filter", Use.OVERWRITE): "this overwrite replaces all rows; use overwrite(df, uri, where=) of lance_assets.spark",
    ("columns", Use.OVERWRITE): "an overwrite replaces whole rows; select the columns of the DataFrame",
    ("intent", Use.STREAM_WRITE): "each batch has its own intent",
    ("starting_version", Use.READ): _STREAMS_ONLY,
    ("starting_timestamp", Use.READ): _STREAMS_ONLY,
}
_BY_TIME = (
    "options name no time; Table.open(uri, timestamp=...).version of lance_core is the version at a time, which the "
    "option version takes"
)
_CHANGES = (
    "use read_changes(spark, uri, since, until) of lance_assets.spark, or spark.readStream with starting_version for "
    "added rows"
)
_WHERE = "use overwrite(df, uri, where=) of lance_assets.spark, which replaces the rows that match a condition"
_ADD_COLUMNS = "add the columns first, with Table.add_columns of lance_core or merge_columns of lance_assets.spark"
_STORED_SCHEMA = "a table has its own schema; remove the option"
_NOT_NEEDED = "the reader and the writer decide that themselves; remove the option"
_IDEMPOTENT = "use intent, an idempotency key: a write with the same intent is committed once"
_ONE_TABLE = "a path names one whole table; use filter to read fewer rows"
_SKIP, _REWRITTEN = "use on_change='skip'", "use on_change='rewritten'"
_PROPERTY = "use property.NAME for each property of the version"
_STORAGE_VERSION = "use storage_version, for a table that the write creates"
_STABLE_ROW_IDS = "use stable_row_ids, for a table that the write creates"
OF_OTHER_FORMATS: dict[str, str] = {
    # time travel
    "versionasof": "use version",
    "snapshotid": "use version",
    "versionnumber": "use version",
    "versiontag": "use tag",
    "tagname": "use tag",
    "ref": "use branch, or tag",
    "branchname": "use branch",
    "timestamp": _BY_TIME,
    "timestampasof": _BY_TIME,
    "asoftimestamp": _BY_TIME,
    # changes
    "readchangefeed": _CHANGES,
    "readchangedata": _CHANGES,
    "endingversion": _CHANGES,
    "endingtimestamp": _CHANGES,
    "startsnapshotid": _CHANGES,
    "endsnapshotid": _CHANGES,
    "starttimestamp": _CHANGES,
    "endtimestamp": _CHANGES,
    # streams
    "ignoredeletes": _SKIP,
    "skipchangecommits": _SKIP,
    "streamingskipdeletesnapshots": _SKIP,
    "streamingskipoverwritesnapshots": _SKIP,
    "ignorechanges": _REWRITTEN,
    "streamfromtimestamp": "use starting_timestamp",
    "startingoffsets": "use starting_version",
    "maxbytespertrigger": "use max_rows_per_trigger or max_files_per_trigger",
    "maxoffsetspertrigger": "use max_rows_per_trigger",
    "streamingmaxrowspermicrobatch": "use max_rows_per_trigger",
    "streamingmaxfilespermicrobatch": "use max_files_per_trigger",
    # selection
    "where": "use filter to read, or overwrite(df, uri, where=) of lance_assets.spark to replace",
    "predicate": "use filter",
    "condition": "use filter",
    "select": "use columns",
    "uri": "give the location by load(uri), save(uri) or start(uri)",
    "dataseturi": "give the location by load(uri), save(uri) or start(uri)",
    "paths": "load, save and start take one location; read several tables one by one and union them",
    "recursivefilelookup": _ONE_TABLE,
    "pathglobfilter": _ONE_TABLE,
    "basepath": _ONE_TABLE,
    "modifiedbefore": _ONE_TABLE,
    "modifiedafter": _ONE_TABLE,
    "limit": "use DataFrame.limit",
    # schemas
    "mergeschema": _ADD_COLUMNS,
    "overwriteschema": "use replace_schema",
    "inferschema": _STORED_SCHEMA,
    "header": _STORED_SCHEMA,
    "datacolumnmapping": _STORED_SCHEMA,
    # partial overwrites
    "replacewhere": _WHERE,
    "replaceusing": _WHERE,
    "replaceon": _WHERE,
    "partitionoverwritemode": _WHERE,
    "overwritemode": _WHERE,
    "dynamicpartitionoverwrite": _WHERE,
    # commits
    "txnappid": _IDEMPOTENT,
    "txnversion": _IDEMPOTENT,
    "usermetadata": _PROPERTY,
    "commitmetadata": _PROPERTY,
    "audit": "an audit is a function, which no option can hold; use append(df, uri, audit=) of lance_assets.spark",
    "mode": "call mode('append') or mode('overwrite') of the writer",
    "writemode": "call mode('append') or mode('overwrite') of the writer",
    # files
    "maxrecordsperfile": "use max_rows_per_file",
    "maxrowperfile": "use max_rows_per_file",
    "targetfilesizebytes": "use max_bytes_per_file",
    "targetfilesize": "use max_bytes_per_file",
    "maxrowspergroup": "use max_rows_per_file",
    "partitionby": "use append(df, uri, cluster_by=) of lance_assets.spark",
    "clusterby": "use append(df, uri, cluster_by=) of lance_assets.spark",
    "fileformatversion": _STORAGE_VERSION,
    "datastorageversion": _STORAGE_VERSION,
    "lanceformatversion": _STORAGE_VERSION,
    "enablestablerowids": _STABLE_ROW_IDS,
    "enablemovestablerowids": _STABLE_ROW_IDS,
    "enablerowtracking": _STABLE_ROW_IDS,
    "writeformat": _NOT_NEEDED,
    "compression": _NOT_NEEDED,
    "compressioncodec": _NOT_NEEDED,
    "datachange": _NOT_NEEDED,
    "optimizewrite": _NOT_NEEDED,
    "autocompact": "use compact(spark, uri) of lance_assets.spark",
    "splitsize": _NOT_NEEDED,
    "lookback": _NOT_NEEDED,
    "fileopencost": _NOT_NEEDED,
    "batchsize": _NOT_NEEDED,
    "blocksize": _NOT_NEEDED,
    "indexcachesize": _NOT_NEEDED,
    "metadatacachesize": _NOT_NEEDED,
    "vectorizationenabled": _NOT_NEEDED,
    "pushdownfilters": "use filter; the workers evaluate it before rows reach Spark",
    "topnpushdown": _NOT_NEEDED,
    "checknullability": _NOT_NEEDED,
    "checkordering": _NOT_NEEDED,
    "fanoutenabled": _NOT_NEEDED,
    "distributionmode": _NOT_NEEDED,
    "isolationlevel": _NOT_NEEDED,
}
"""Advice for options of other formats, by their name in lower case and without separators."""


def check_names(names: Iterable[str], uses: Iterable[Use]) -> None:
    """Raise `InvalidInput` for an option that none of these uses of the format accepts."""
    names, uses = [name.lower() for name in names], list(uses)
    ignored = _OF_CATALOG_TABLES if "owner" in names else ()
    for name in names:
        if name in ignored or name.startswith(("__", "option.") if ignored else "__"):
            continue
        if name.startswith(_PREFIXES[:2]):
            check_storage_option_names([name.partition(".")[2]])
        elif not name.startswith(_PREFIXES) and not _is_accepted(name, uses):
            raise InvalidInput(_message(name, uses))


def _is_accepted(name: str, uses: list[Use]) -> bool:
    return name in _NAMES and any(use in OPTIONS[_NAMES[name]] for use in uses)


def _message(name: str, uses: list[Use]) -> str:
    if name in _NAMES:
        remedy = next((text for use in uses if (text := _REMEDIES.get((_NAMES[name], use)))), "remove it")
        return f"the option {_NAMES[name]} does not apply to {uses[0].value}: {remedy}"
    plain = "".join(character for character in name if character not in "_-.")
    if advice := OF_OTHER_FORMATS.get(plain):
        return f'the format "lance" has no option {name!r}: {advice}'
    if name.startswith(("snapshot-property.", "commitmetadata.")):
        return f'the format "lance" has no option {name!r}: {_PROPERTY}'
    if is_storage_option(name):
        return f'the format "lance" has no option {name!r}: it is a storage option, written as storage.{name}'
    accepted = {name for name, users in OPTIONS.items() if not users.isdisjoint(uses)}
    near = _nearest_with_prefix(name) or _nearest(plain, accepted)
    remedy = f"did you mean {near!r}?" if near else f"its options for {uses[0].value} are {', '.join(sorted(accepted))}"
    return f'the format "lance" has no option {name!r}; {remedy}'


def _nearest(plain: str, accepted: Iterable[str]) -> str | None:
    by_plain = {name.replace("_", ""): name for name in accepted}
    near = difflib.get_close_matches(plain, by_plain, n=1)
    return by_plain[near[0]] if near else None


def _nearest_with_prefix(name: str) -> str | None:
    prefix, dot, rest = name.partition(".")
    near = difflib.get_close_matches(f"{prefix}.", _PREFIXES, n=1) if dot and rest else []
    return f"{near[0]}{rest}" if near else None
