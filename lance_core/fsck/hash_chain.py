"""Hash chain: checks that every manifest still has the bytes on which the next version was based.

Versions of this library record the hash of their parent (`format/manifest.py`), so a change to a manifest is found
through the next version, whichever engine wrote the manifest; the newest version cannot be checked yet. Other engines
record no parent, or copy the record from one of our transactions. Only a record in a manifest that our own writer
signed is trusted; elsewhere the chain begins again. Start with `check_chain`.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import filterfalse

from lance_core.errors import LanceError
from lance_core.format import manifest_builder, naming
from lance_core.format.ids import Version
from lance_core.format.manifest import ParentHash
from lance_core.format.operations import Clone
from lance_core.format.transaction import Transaction
from lance_core.fsck.report import Chain, Finding, Severity
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import read_whole
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_transaction

_CHANGED_REPAIR = (
    "Restore that version from a copy with the recorded hash. Until then, do not trust its rows, nor those that later "
    "versions took over from it: compare them with their source."
)


@dataclass(frozen=True, slots=True)
class Link:
    """The hash of a version, and of the version it was based on."""

    hash: ParentHash
    path: str
    parent: ParentHash | None
    """`None` if the version records no trusted parent."""
    source: Callable[[], ParentHash | None] | None = field(default=None, repr=False)
    """Function that computes the current hash of the parent, if that is a version of another branch."""
    is_readable: bool = True
    """`False` if the manifest cannot be decoded; its bytes are compared nevertheless."""

    @classmethod
    def of(cls, snapshot: Snapshot, transaction: Transaction | None) -> "Link":
        """Return the link of a version."""
        manifest = snapshot.manifest
        signed = manifest.library == manifest_builder.LIBRARY and transaction is not None
        parent = transaction.parent if signed and transaction is not None else None
        source = None
        if transaction is not None and isinstance(transaction.operation, Clone):
            source = _branch_parent(snapshot, transaction.operation)
        return cls(manifest.as_parent, manifest.path, parent, source)

    @classmethod
    def of_unreadable(cls, location: Location, version: Version, path: str) -> Iterator["Link"]:
        """Yield the link of a version that is damaged or too new: a single flipped bit may be the cause."""
        with suppress(LanceError):
            data = read_whole(location.store, path, MANIFEST_BYTES)
            yield cls(ParentHash(version, hashlib.sha256(data).hexdigest()), path, None, is_readable=False)

    @property
    def version(self) -> Version:
        return self.hash.version


def neighbour_links(location: Location, version: Version) -> Iterator[Link]:
    """Yield the links before and after a version that is examined alone."""
    for number in (version - 1, version + 1):
        try:
            snapshot = load_at(location, Version(number))
            yield Link.of(snapshot, load_transaction(location, snapshot.manifest))
        except LanceError:
            continue


def detached_links(location: Location) -> Iterator[Link]:
    """Yield the links of detached versions."""
    for info in location.store.list(naming.VERSIONS):
        version = naming.parse_detached_name(info.path.rpartition("/")[2])
        try:
            if version is not None:
                snapshot = load_at(location, version)
                yield Link.of(snapshot, load_transaction(location, snapshot.manifest))
        except LanceError:
            continue


def check_chain(links: Sequence[Link]) -> tuple[Chain, list[Finding]]:
    """Compare each recorded hash to the current one."""
    links_by_version = {link.version: link for link in links}
    verified, findings = set(), []
    for link in links:
        if link.parent is None:
            continue
        recorded = link.parent
        expected = (
            link.version if link.source else recorded.version if naming.is_detached(link.version) else link.version - 1
        )
        if recorded.version != expected or not recorded.version:
            findings.append(_impossible_parent(link, recorded))
            continue
        parent_link = links_by_version.get(recorded.version)
        current, path = (parent_link.hash, parent_link.path) if parent_link else (None, "")
        if link.source is not None:
            current, path = link.source(), link.path
        if current is None:
            continue  # cleaned up, in another table, or unreadable and already reported
        if current == recorded:
            if link.source is None:
                verified.add(recorded.version)
        else:
            what = (
                f"version {link.version} was based on other bytes: version {recorded.version} had the SHA-256 "
                f"{recorded.sha256}, but now has {current.sha256}"
            )
            findings.append(Finding(Severity.ERROR, "chain", path, what, _CHANGED_REPAIR, recorded.version))
    begins = [link.version for link in links if link.parent is None and link.is_readable]
    return Chain(tuple(sorted(verified)), tuple(sorted(set(filterfalse(naming.is_detached, begins))))), findings


def _impossible_parent(link: Link, recorded: ParentHash) -> Finding:
    parent = f"version {recorded.version}" if recorded.version else f"{recorded.sha256[:80]!r}"
    what = f"it records {parent} as its parent, which is impossible"
    return Finding(Severity.ERROR, "chain", link.path, what, _CHANGED_REPAIR, link.version)


def _branch_parent(snapshot: Snapshot, operation: Clone) -> Callable[[], ParentHash | None]:
    """Return the source of a branch's first version, which is in the same table. The current state of another table
    is not checked."""

    def current_hash() -> ParentHash | None:
        location, branch = snapshot.location, snapshot.manifest.branch
        if branch is None or location.main_branch_uri(branch) is None:
            return None
        try:
            main = location.locate_main_branch(branch)
            parent_location = main.locate_branch(operation.ref_name) if operation.ref_name else main
            return load_at(parent_location, operation.ref_version).manifest.as_parent
        except LanceError:
            return None

    return current_hash
