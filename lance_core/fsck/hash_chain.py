"""The chain of hashes: is every version still, bit by bit, what the next one was made upon.

A version of ours tells its parent (`format/hash_chain.py`), so a change to a manifest is found by the version after it,
whoever made the manifest; of the newest version nobody tells yet. Other engines tell no parent, or repeat what they
found in a transaction of ours: only what our own writer signed is believed, and the chain begins anew there.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import filterfalse

from lance_core.errors import LanceError
from lance_core.format import manifest_builder, naming
from lance_core.format.hash_chain import ParentHash
from lance_core.format.ids import Version
from lance_core.format.operations import Clone
from lance_core.format.transaction import Transaction
from lance_core.fsck.report import Chain, Finding, Severity
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import read_whole
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_transaction

_CHANGED_REPAIR = (
    "Put that version back from a copy whose hash is right. Until then believe neither its rows nor those that later "
    "versions took over from it: compare them with where they came from."
)


@dataclass(frozen=True, slots=True)
class Link:
    """What a version is, and upon what it was made."""

    hash: ParentHash
    path: str
    parent: ParentHash | None
    """None where it tells none that is to be believed."""
    source: Callable[[], ParentHash | None] | None = field(default=None, repr=False)
    """What the parent is now, where that is a version of another line."""
    is_readable: bool = True
    """Whether it could be understood; if not, its bytes are compared all the same."""

    @classmethod
    def of(cls, snapshot: Snapshot, transaction: Transaction | None) -> "Link":
        manifest = snapshot.manifest
        signed = manifest.library == manifest_builder.LIBRARY and transaction is not None
        parent = transaction.parent if signed and transaction is not None else None
        source = None
        if transaction is not None and isinstance(transaction.operation, Clone):
            source = _branch_parent(snapshot, transaction.operation)
        return cls(manifest.as_parent, manifest.path, parent, source)

    @classmethod
    def of_unreadable(cls, location: Location, version: Version, path: str) -> Iterator["Link"]:
        """Of a version that is damaged, or too new: one bit may have made it so."""
        with suppress(LanceError):
            data = read_whole(location.store, path, MANIFEST_BYTES)
            yield cls(ParentHash(version, hashlib.sha256(data).hexdigest()), path, None, is_readable=False)

    @property
    def version(self) -> Version:
        return self.hash.version


def neighbour_links(location: Location, version: Version) -> Iterator[Link]:
    """The links before and after a version that alone is looked at."""
    for number in (version - 1, version + 1):
        try:
            snapshot = load_at(location, Version(number))
            yield Link.of(snapshot, load_transaction(location, snapshot.manifest))
        except LanceError:
            continue


def detached_links(location: Location) -> Iterator[Link]:
    """Those of versions beside the line."""
    for info in location.store.list(naming.VERSIONS):
        version = naming.parse_detached_name(info.path.rpartition("/")[2])
        try:
            if version is not None:
                snapshot = load_at(location, version)
                yield Link.of(snapshot, load_transaction(location, snapshot.manifest))
        except LanceError:
            continue


def check_chain(links: Sequence[Link]) -> tuple[Chain, list[Finding]]:
    known = {link.version: link for link in links}
    verified, findings = set(), []
    for link in links:
        if link.parent is None:
            continue
        told = link.parent
        expected = (
            link.version if link.source else told.version if naming.is_detached(link.version) else link.version - 1
        )
        if told.version != expected or not told.version:
            findings.append(_impossible_parent(link, told))
            continue
        before = known.get(told.version)
        found, path = (before.hash, before.path) if before else (None, "")
        if link.source is not None:
            found, path = link.source(), link.path
        if found is None:
            continue  # it was cleaned up, or it lies elsewhere, or it cannot be read, which was said
        if found == told:
            if link.source is None:
                verified.add(told.version)
        else:
            what = (
                f"version {link.version} was made upon other bytes: version {told.version} had the SHA-256 "
                f"{told.sha256}, and has {found.sha256}"
            )
            findings.append(Finding(Severity.ERROR, "chain", path, what, _CHANGED_REPAIR, told.version))
    begins = [link.version for link in links if link.parent is None and link.is_readable]
    return Chain(tuple(sorted(verified)), tuple(sorted(set(filterfalse(naming.is_detached, begins))))), findings


def _impossible_parent(link: Link, told: ParentHash) -> Finding:
    upon = f"upon version {told.version}" if told.version else f"upon {told.sha256[:80]!r}"
    what = f"it says that it was made {upon}, which cannot be"
    return Finding(Severity.ERROR, "chain", link.path, what, _CHANGED_REPAIR, link.version)


def _branch_parent(snapshot: Snapshot, operation: Clone) -> Callable[[], ParentHash | None]:
    """Of a branch, which lies in the same table; what another table is now, is not looked at."""

    def found() -> ParentHash | None:
        location, branch = snapshot.location, snapshot.manifest.branch
        if branch is None or location.main_branch_uri(branch) is None:
            return None
        try:
            main = location.locate_main_branch(branch)
            line = main.locate_branch(operation.ref_name) if operation.ref_name else main
            return load_at(line, operation.ref_version).manifest.as_parent
        except LanceError:
            return None

    return found
