"""What a transaction does: one value per operation of the format.

Operations that this package does not yet apply are kept whole as `Other`: history can name them, and nothing
is committed beside them unjudged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema

_NAMES = {
    "append": "Append",
    "delete": "Delete",
    "overwrite": "Overwrite",
    "create_index": "CreateIndex",
    "rewrite": "Rewrite",
    "merge": "Merge",
    "restore": "Restore",
    "reserve_fragments": "ReserveFragments",
    "update": "Update",
    "project": "Project",
    "update_config": "UpdateConfig",
    "data_replacement": "DataReplacement",
    "update_mem_wal_state": "UpdateMemWalState",
    "clone": "Clone",
    "update_bases": "UpdateBases",
    "data_overlay": "DataOverlay",
    "append_fri_transitions": "AppendFragmentReuseTransitions",
}


@dataclass(frozen=True, slots=True)
class Append:
    """Add rows: fragments with fresh ids, beside all that is there."""

    fragments: tuple[Fragment, ...]
    name = "Append"


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replace all rows and the schema. Config and table metadata stay;
    every table begins with one of these."""

    fragments: tuple[Fragment, ...]
    schema: TableSchema
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    name = "Overwrite"


@dataclass(frozen=True, slots=True)
class Other:
    """An operation that is read but not applied; `message` is the whole transaction."""

    name: str
    message: transaction_pb2.Transaction


Operation = Append | Overwrite | Other


def decode(message: transaction_pb2.Transaction) -> Operation:
    kind = message.WhichOneof("operation")
    if kind == "append":
        return Append(_fragments(message.append.fragments))
    if kind == "overwrite":
        overwrite = message.overwrite
        schema = TableSchema.decode(overwrite.schema, overwrite.schema_metadata, path="transaction")
        return Overwrite(_fragments(overwrite.fragments), schema, dict(overwrite.config_upsert_values))
    return Other(_NAMES.get(kind or "", kind or "unknown"), message)


def encode_into(message: transaction_pb2.Transaction, operation: Operation) -> None:
    match operation:
        case Append():
            message.append.fragments.extend(fragment.message for fragment in operation.fragments)
            message.append.SetInParent()
        case Overwrite():
            message.overwrite.fragments.extend(fragment.message for fragment in operation.fragments)
            message.overwrite.schema.extend(operation.schema.encode())
            for key, value in operation.schema.metadata.items():
                message.overwrite.schema_metadata[key.decode()] = value
            message.overwrite.config_upsert_values.update(operation.config_upserts)
            message.overwrite.SetInParent()
        case Other():
            message.MergeFrom(operation.message)


def _fragments(messages: Iterable[table_pb2.DataFragment]) -> tuple[Fragment, ...]:
    return tuple(map(Fragment, messages))
