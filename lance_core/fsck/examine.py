"""The round through a table: its names, its versions from the oldest on, what they name, references, orphans."""

import enum
from collections.abc import Iterator, Mapping, Sequence

from pyroaring import BitMap

from lance_core.errors import Corrupt, LanceError, NotFound, Unsupported
from lance_core.format import naming, refs
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.fsck import manifests
from lance_core.fsck.blobs import Blobs
from lance_core.fsck.files import Files
from lance_core.fsck.report import Finding, Report, Severity
from lance_core.inventory import Line, listed, named_by, named_by_other_lines
from lance_core.location import Location
from lance_core.refs import named
from lance_core.snapshot import Snapshot, load_at, load_transaction

_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


class Extent(enum.Enum):
    ALL = "all"
    HEAD = "head"
    """The newest version only; orphans and the order of versions are then not asked for."""


def examine(location: Location, extent: Extent = Extent.ALL) -> Report:
    """Whatever state it is in; a directory that holds no version at all is the only thing that is refused."""
    manifest_names = _manifests(location)
    if not manifest_names:
        raise NotFound(f"there is no Lance table at {location.uri}; check the path")
    findings = list(_mixed_names(manifest_names))
    by_number = {version: path for path, version in manifest_names}
    numbers = sorted(by_number)
    looked_at = numbers if extent is Extent.ALL else numbers[-1:]
    sizes = {info.path: info.size for _key, info in listed(location)}
    files, blobs = Files(sizes), Blobs(sizes)
    seen: set[bytes] = set()
    names: set[str] = set()
    uuids: dict[str, Version] = {}
    before: Manifest | None = None
    readable: list[Snapshot] = []
    all_named = extent is Extent.ALL
    for version in looked_at:
        try:
            snapshot = load_at(location, version)
        except LanceError as error:
            if version == numbers[-1]:
                findings.append(_broken_head(location, by_number, error))
            else:
                findings.append(_unreadable(by_number[version], version, error))
            before, all_named = None, False
            continue
        readable.append(snapshot)
        findings += _version(snapshot, files, blobs, seen)
        findings += _record(snapshot, uuids)
        if before is not None:
            findings += manifests.of_pair(before, snapshot.manifest)
        before = snapshot.manifest
        try:
            here = named_by(before)
        except Corrupt:
            all_named = False  # the section of indices, which was found damaged above
            continue
        names |= here.own | here.elsewhere
    if readable:
        findings += _coverage(readable[-1].manifest)
        line = _line(location, readable[-1].manifest, findings)
        if line is not None:
            findings += _references(line)
            if all_named:
                findings += _orphans(line, names)
    findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    return Report(location.uri, tuple(looked_at), files.count, tuple(findings))


def _manifests(location: Location) -> list[tuple[str, Version]]:
    found = []
    for info in location.store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            found.append((info.path, parsed[0]))
    return found


def _mixed_names(named: Sequence[tuple[str, Version]]) -> Iterator[Finding]:
    schemes = {naming.parse_manifest_name(path.rpartition("/")[2]) for path, _version in named}
    kinds = {parsed[1].value for parsed in schemes if parsed}
    if len(kinds) > 1:
        yield Finding(
            Severity.ERROR,
            "mixed_names",
            naming.VERSIONS,
            "it holds manifests of both naming schemes, and no reader opens such a table",
            "With no writer at work, open a version by its number and call migrate_manifest_names() on it.",
        )


def _broken_head(location: Location, by_number: Mapping[Version, str], error: LanceError) -> Finding:
    """With the way back to the newest version that can be read."""
    head, *older = sorted(by_number, reverse=True)
    path = by_number[head]
    if not isinstance(error, Corrupt):
        return _unreadable(path, head, error)
    what = f"the newest version is damaged: {error.what}"
    aside = [head]
    for version in older:
        try:
            load_at(location, version)
        except Corrupt:
            aside.append(version)
        except LanceError as unknown:
            repair = f"Move nothing before version {version} can be looked at, which now fails: {unknown}."
            return Finding(Severity.ERROR, "head", path, what, repair, head)
        else:
            moved = ", ".join(f"{by_number[each]} to {by_number[each]}.damaged" for each in aside)
            repair = (
                f"Read version {version} by its number and find out what was added after it. Then move aside {moved} "
                f"and write that again: the table goes on from version {version}."
            )
            return Finding(Severity.ERROR, "head", path, what, repair, head)
    repair = (
        "No version can be read. Put this file back from a copy, and delete nothing: the rows are in the data files."
    )
    return Finding(Severity.ERROR, "head", path, what, repair, head)


def _unreadable(path: str, version: Version, error: LanceError) -> Finding:
    if isinstance(error, Unsupported):
        what, repair = f"it was not looked at: {error}", "Look at it with a newer version of this package."
        return Finding(Severity.WARNING, "not_understood", path, what, repair, version)
    if not isinstance(error, Corrupt):
        return Finding(Severity.ERROR, "manifest", path, f"it could not be looked at: {error}", "Try again.", version)
    what = error.what
    repair = "Nothing newer depends on it. Move it aside to let cleanup go on, which stops at what it cannot read."
    return Finding(Severity.ERROR, "manifest", path, f"this version cannot be read: {what}", repair, version)


def _version(snapshot: Snapshot, files: Files, blobs: Blobs, seen: set[bytes]) -> Iterator[Finding]:
    manifest = snapshot.manifest
    yield from manifests.of_version(manifest)
    for fragment in manifest.fragments:
        # What never changes is looked at in the oldest version that has it.
        fingerprint = fragment.encode()
        if fingerprint in seen:
            continue
        seen.add(fingerprint)
        found = list(manifests.of_fragment(manifest, fragment))
        yield from found
        if not any(finding.rule == "fragment" for finding in found):
            found = list(files.of_fragment(snapshot.location, manifest, fragment))
            yield from found or blobs.of_fragment(snapshot.location, manifest, fragment)
    try:
        yield from files.of_indices(snapshot.location, manifest)
    except Corrupt:
        return  # the section was found damaged above
    yield from files.live_twice(manifest)


def _record(snapshot: Snapshot, uuids: dict[str, Version]) -> Iterator[Finding]:
    manifest = snapshot.manifest
    try:
        transaction = load_transaction(snapshot.location, manifest)
    except LanceError as error:
        repair = "A writer that planned on an older version has to plan again; nothing else needs it."
        yield manifests.error(manifest, "transaction", f"what made it cannot be read: {error}", repair)
        return
    if transaction is None:
        what = "nothing says what made it: no change that was planned before it can be committed after it"
        yield manifests.warning(manifest, "transaction", what, "It passes, once such changes are planned again.")
    elif (first := uuids.setdefault(transaction.uuid, manifest.version)) != manifest.version:
        what = f"version {first} holds the same transaction, {transaction.uuid}: its rows may be there twice"
        yield manifests.error(manifest, "transaction_twice", what, "Compare both versions; delete what came twice.")


def _coverage(manifest: Manifest) -> Iterator[Finding]:
    """Of the newest version: what queries by index still have to scan."""
    try:
        indices = manifest.indices
        alive = manifests.alive(manifest)
        for name in dict.fromkeys(index.name for index in indices if not index.is_system):
            segments = [index for index in indices if index.name == name]
            part = BitMap.union(BitMap(), *(manifests.covered(index, alive) for index in segments))
            if part != alive:
                what = f"index {name!r} covers {len(part)} of {len(alive)} fragments; the others are scanned"
                repair = "Optimize the indices if queries are slow."
                yield Finding(Severity.INFO, "index_behind", manifest.path, what, repair, manifest.version)
    except Corrupt:
        return  # found above


def _line(location: Location, manifest: Manifest, findings: list[Finding]) -> Line | None:
    own = location.with_bases((), None, path=manifest.path)
    try:
        return Line(own, own.main_line(manifest.branch).store, manifest.branch)
    except LanceError as error:
        findings.append(manifests.error(manifest, "branch", str(error), "Move it back to where it was."))
        return None


def _references(line: Line) -> Iterator[Finding]:
    """Of all lines, when this is the main one; of a branch, those to itself."""
    versions: dict[str | None, set[Version]] = {}
    for name, path in named(line.root, refs.TAGS):
        try:
            tag = refs.decode_tag(line.root.read(path), path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if line.branch not in (None, tag.branch):
            continue
        if tag.branch not in versions:
            versions[tag.branch] = _versions_of(line, tag.branch)
        if tag.version not in versions[tag.branch]:
            on = "" if tag.branch is None else f" of branch {tag.branch}"
            what = f"tag {name!r} names version {tag.version}{on}, which does not exist"
            yield Finding(Severity.WARNING, "dangling_tag", path, what, "Delete the tag.")
    for name, path in named(line.root, refs.BRANCHES):
        try:
            refs.decode_branch(line.root.read(path), name=name, path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if line.branch is None and all(map(naming.is_detached, _versions_of(line, name))):
            what = f"branch {name!r} has no version"
            yield Finding(Severity.WARNING, "empty_branch", path, what, "Delete the branch.")


def _unreadable_reference(path: str, error: LanceError) -> Finding:
    if isinstance(error, Corrupt):
        repair = "Remove this file, and make the reference again."
        return Finding(Severity.ERROR, "reference", path, error.what, repair)
    return Finding(Severity.ERROR, "reference", path, f"it could not be looked at: {error}", "Try again.")


def _versions_of(line: Line, branch: str | None) -> set[Version]:
    """Those beside the line included."""
    found = set()
    for info in line.root.list(f"{refs.branch_directory(branch)}/{naming.VERSIONS}" if branch else naming.VERSIONS):
        name = info.path.rpartition("/")[2]
        if parsed := naming.parse_manifest_name(name):
            found.add(parsed[0])
        elif (beside := naming.parse_detached_name(name)) is not None:
            found.add(beside)
    return found


def _orphans(line: Line, names: set[str]) -> Iterator[Finding]:
    try:
        names = names | named_by_other_lines(line)
    except LanceError as error:
        what = f"which files are needed cannot be told, since another line cannot be read: {error}"
        yield Finding(Severity.WARNING, "orphans", refs.TREE, what, "Examine the branch it is about.")
        return
    for key, info in listed(line.location):
        if key not in names:
            what = f"no version names it ({info.size} bytes, last changed {info.modified:%Y-%m-%d})"
            repair = "Cleanup removes it once it is older than the grace period; it may belong to a write under way."
            yield Finding(Severity.INFO, "orphan", info.path, what, repair)
