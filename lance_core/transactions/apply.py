"""The manifest after a change: what each operation does to the version that follows the head.

Pure: time, names and the version of this library are handed in. How a manifest holds it all is
`format/draft.py`'s.
"""

from dataclasses import dataclass

from lance_core.errors import InvalidInput, Unsupported
from lance_core.format.draft import Draft
from lance_core.format.fragment import StorageVersion
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Append, Operation, Other, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import INLINE_BYTES_MAX, Transaction
from lance_core.transactions import arrivals, invariants


@dataclass(frozen=True, slots=True)
class Birth:
    """What is decided once, when a table is created."""

    storage_version: StorageVersion
    stable_row_ids: bool = False


@dataclass(frozen=True, slots=True)
class Occasion:
    """What one turn of a commit hands in: everything that is neither in the transaction nor in the head."""

    now_ns: int
    library_version: str
    transaction_file: str
    scheme: NamingScheme = NamingScheme.V2


def apply(head: Manifest | Birth, ours: Transaction, occasion: Occasion) -> Manifest:
    """The manifest of the version that follows `head`; of version 1 for a `Birth`."""
    if isinstance(head, Birth):
        before = None
        draft = Draft.born(head.storage_version, stable_row_ids=head.stable_row_ids)
    else:
        head.check_writable()
        before = head
        draft = Draft.after(head)
    _check_arrivals(before, ours.operation)
    _change(draft, ours.operation)
    record = ours.encode()
    after = draft.finish(
        now_ns=occasion.now_ns,
        library_version=occasion.library_version,
        transaction_file=occasion.transaction_file,
        transaction=record if len(record) <= INLINE_BYTES_MAX else None,
        scheme=occasion.scheme,
    )
    invariants.check(before, after, fresh=draft.fresh)
    return after


def _check_arrivals(head: Manifest | None, operation: Operation) -> None:
    if isinstance(operation, Append):
        arrivals.check_fields(operation.fragments, head.schema if head else TableSchema((), {}))
        arrivals.check_files_once(operation.fragments, head)
    elif isinstance(operation, Overwrite):
        arrivals.check_schema(operation.schema)
        arrivals.check_fields(operation.fragments, operation.schema)
        arrivals.check_files_once(operation.fragments, None)


def _change(draft: Draft, operation: Operation) -> None:
    match operation:
        case Append():
            _check_ids(draft, operation)
            draft.add(operation.fragments, keep_ids=True)
        case Overwrite():
            if any(fragment.deletion_file for fragment in operation.fragments):
                raise InvalidInput("an Overwrite cannot bring fragments with deleted rows")
            draft.replace_contents(operation.schema)
            draft.set_config(operation.config_upserts)
            draft.add(operation.fragments, keep_ids=False)
        case Other():
            raise Unsupported(f"{operation.name} is read, not applied, by this version")


def _check_ids(draft: Draft, append: Append) -> None:
    last = draft.max_fragment_id
    for fragment in append.fragments:
        if fragment.id and fragment.id <= last:
            raise InvalidInput(
                f"this Append brings a fragment with id {fragment.id}, and ids up to {last} are given out "
                "already; append fragments as their writer returned them, without ids"
            )
        last = fragment.id or last + 1
