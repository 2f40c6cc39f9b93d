"""Path traversal: tries hundreds of names that lead out of a table, in every place where a table stores a name, and
detects whether any is followed.

It runs as a separate program, because its audit hook cannot be removed from a process:

    python -m tests.security.hostile DIRECTORY [EVERY]

The directory contains readable files around the table: data files, manifests, transactions. A name may be rejected or
refer to no file. It must not open anything outside the table, nor be read as if it existed. With `EVERY`, only every
n-th name is tried. Prints the failures as JSON. Start reading at `FIELDS`.
"""

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from lance_core import LanceError, Table
from lance_core.datafiles import blob_locations
from lance_core.format import manifest_file, refs
from lance_core.format._pb import table_pb2
from lance_core.format.fragment_reuse import content_of, reuse_entry
from lance_core.format.ids import Version
from lance_core.storage.local import LocalStore
from lance_core.storage.manifest_stores.manifest_store import Entry, check_entry
from lance_core.versions.location import locate

CANARY = "canary.lance"
_DOTS = (
    "..",
    "%2e%2e",
    "%2E.",
    "%252e%252e",
    "\uff0e\uff0e",
    "\u2024\u2024",
    "\u2026",
    "..;",
    "..%00",
    "..\0",
    ".. ",
    "....",
    ". .",
    "..\u200b",
)
_STEPS = ("/", "\\", "//", "/./", "%2f", "%5c", "%252f", "\u2215", "\uff0f", "\t/")
_ROOTED = ("/", "//", "///", "\\\\", "C:\\", "C:/", "c:", "~/", "~root/", "$HOME/", "${HOME}/", "%HOME%\\", "./", " /")
_SCHEMES = (
    "file://", "file:///", "FILE:///", "file:", "file://localhost/", "file://elsewhere/", "s3://bucket/", "@0/", "@1/",
    "gs://bucket/", "az://container/", "abfss://c@account.dfs.core.windows.net/", "http://169.254.169.254/latest/",
    "https://example.org/", "memory://", "data:,", "s3a://bucket/", "simplecache::file:///", "jar:file:///", "@-1/",
    "\\\\?\\", "\\\\server\\share\\", "hdfs://host/", "gopher://host/", "ftp://host/", "javascript:", "@0x1/", "@/",
    "@999999999999/",
)  # fmt: skip
_ODD = (
    "", " ", ".", "..", "/", "\\", "\0", "\n", "a\n", "a\r", "\u202eecnal", "a/", "/a", "a//b", "a/./b", "a/../b",
    "a/..", "-/../a", ".hidden", ".tmp-1", "a/.hidden", "nul", "CON", "a:b", "a|b", "a*b", "a?b", "a#b", "a%b", "a;b",
    "\u00e9", "\u540d\u524d", "x" * 300, "x/" * 200 + "x", "x" * 70_000, "../" * 400 + "etc/passwd", "\ud7ff",
    "\U0010ffff", "a\x7f", "a\x1b[2J",
)  # fmt: skip


def hostile_names(canary: Path) -> list[str]:
    """Return at least five hundred names; many of them reach the canary file if they are followed."""
    ups = [
        step.join([dots] * times) + step + target
        for dots, step, times, target in itertools.product(_DOTS, _STEPS, (1, 2, 3), (CANARY,))
    ]
    real = [f"{'../' * times}{canary.name}" for times in range(1, 9)]
    real += [f"{start}{'/..' * times}/{canary.name}" for start in ("a", "data", "a/b") for times in range(1, 5)]
    whole = [
        str(canary),
        quote(str(canary)),
        f"file://{canary}",
        f"file://localhost{canary}",
        f"/.{canary}",
        f"/{canary}",
    ]
    rooted = [start + str(canary).lstrip("/") for start in (*_ROOTED, *_SCHEMES)]
    return list(dict.fromkeys([*real, *whole, *rooted, *ups, *_ODD, *(start + CANARY for start in _SCHEMES)]))


class AccessAudit:
    """Audit hook that records which files this process opens and lists, and where it connects."""

    def __init__(self, forbidden: Path) -> None:
        self._forbidden = str(forbidden)
        self.events: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir"):
            paths = [str(argument) for argument in arguments if isinstance(argument, str | bytes | Path)]
            self.events += [f"{event} {path}" for path in paths if path.startswith(self._forbidden)]
        if event.startswith("socket.connect") or event == "socket.getaddrinfo":
            self.events.append(f"{event} {arguments!r}")


@dataclass
class ForgedTable:
    """Table whose newest manifest can be forged."""

    table: Table
    outside: Path
    manifest: Path = field(init=False)
    intact_manifest: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.manifest = Path(self.table.uri, self.table.manifest.path)
        self.intact_manifest = self.manifest.read_bytes()

    def forge_manifest(self, change: Callable[[table_pb2.Manifest], None], section: bytes | None = None) -> Table:
        message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(self.intact_manifest, path="m"))
        change(message)
        message.ClearField("transaction_section")
        message.ClearField("index_section")
        if section is not None:
            message.index_section = 0
        self.manifest.write_bytes(manifest_file.frame_manifest(section, None, message.SerializeToString()))
        return Table.open(self.table.uri, durable=False)


Use = Callable[[ForgedTable, str], object]


def _data(subject: ForgedTable, name: str) -> object:
    return subject.forge_manifest(lambda m: setattr(m.fragments[0].files[0], "path", name)).to_table()


def _legacy_data(subject: ForgedTable, name: str) -> object:
    def change(message: table_pb2.Manifest) -> None:
        file = message.fragments[0].files[0]
        file.path, file.file_major_version, file.file_minor_version = name, 0, 1

    return subject.forge_manifest(change).to_table()


def _data_in_base(subject: ForgedTable, name: str) -> object:
    """The base is the table itself, which may be read."""

    def change(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=subject.table.uri, is_dataset_root=False)
        message.fragments[0].files[0].path = name
        message.fragments[0].files[0].base_id = 1

    return subject.forge_manifest(change).to_table()


def _base(is_root: bool) -> Use:
    def use(subject: ForgedTable, name: str) -> object:
        def change(message: table_pb2.Manifest) -> None:
            message.base_paths.add(id=1, path=name or "/", is_dataset_root=is_root)
            message.fragments[0].files[0].path = CANARY
            message.fragments[0].files[0].base_id = 1

        return subject.forge_manifest(change).to_table()

    return use


def _deletions_in_base(subject: ForgedTable, name: str) -> object:
    def change(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=name or "/", is_dataset_root=True)
        message.reader_feature_flags |= 1
        message.writer_feature_flags |= 1
        message.fragments[0].deletion_file.base_id = 1
        message.fragments[0].deletion_file.num_deleted_rows = 1

    return subject.forge_manifest(change).to_table()


def _transaction(subject: ForgedTable, name: str) -> object:
    """A transaction file that does not exist counts as no transaction."""
    found = subject.forge_manifest(lambda m: setattr(m, "transaction_file", name)).transaction()
    return _refuse_if(found is None)


def _lineage(which: str) -> Use:
    def use(subject: ForgedTable, name: str) -> object:
        def change(message: table_pb2.Manifest) -> None:
            message.reader_feature_flags |= 2
            message.writer_feature_flags |= 2
            file = getattr(message.fragments[0], which)
            file.path, file.size = name, 4

        return subject.forge_manifest(change).to_table(with_row_id=True)

    return use


def _branch(subject: ForgedTable, name: str) -> object:
    """A manifest names its branch, which leads to the main branch with the references."""
    table = subject.forge_manifest(lambda m: setattr(m, "branch", name))
    return table.tags.list()


def _index_file(subject: ForgedTable, name: str) -> object:
    index = table_pb2.IndexMetadata(name="i", fields=[0], dataset_version=1, uuid=table_pb2.UUID(uuid=b"0" * 16))
    index.files.add(path=name, size_bytes=1)
    section = table_pb2.IndexSection(indices=[index]).SerializeToString()
    target = subject.outside / "clone"
    try:
        return subject.forge_manifest(lambda m: None, section).clone(str(target), shallow=False)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _reuse_file(subject: ForgedTable, name: str) -> object:
    index = table_pb2.IndexMetadata(name="__lance_frag_reuse", dataset_version=1, uuid=table_pb2.UUID(uuid=b"0" * 16))
    details = table_pb2.FragmentReuseIndexDetails()
    details.external.path, details.external.size = name, 1
    index.index_details.type_url = "/lance.table.FragmentReuseIndexDetails"
    index.index_details.value = details.SerializeToString()
    table = subject.forge_manifest(lambda m: None, table_pb2.IndexSection(indices=[index]).SerializeToString())
    entry = reuse_entry(table.indices)
    assert entry is not None
    content_of(entry)
    return table.compact(remap="none")


def _tag(subject: ForgedTable, name: str) -> object:
    path = Path(subject.table.uri, "_refs/tags/t.json")
    path.write_text(json.dumps({"branch": name, "version": 1, "manifestSize": 1}))
    return subject.table.at(tag="t")


def _parent(subject: ForgedTable, name: str) -> object:
    path = Path(subject.table.uri, "_refs/branches/b.json")
    path.write_text(json.dumps({"parentBranch": name, "parentVersion": 1, "createAt": 1, "manifestSize": 1}))
    try:
        return subject.table.branches.list() and _refuse_if(refs.is_branch_name(name))
    finally:
        path.unlink()


def _given_tag(subject: ForgedTable, name: str) -> object:
    return subject.table.at(tag=name)


def _given_branch(subject: ForgedTable, name: str) -> object:
    return Table.open(subject.table.uri, branch=name)


def _new_branch(subject: ForgedTable, name: str) -> object:
    """Create a branch. Unusual but valid names are accepted."""
    made = subject.table.branches.create(name)
    _refuse_if(refs.is_branch_name(name))
    return made


def _hint(subject: ForgedTable, name: str) -> object:
    """The hint is never trusted: the table is read as it is."""
    Path(subject.table.uri, "_versions/latest_version_hint.json").write_text(json.dumps({"version": name}))
    found = Table.open(subject.table.uri).to_table()
    return _refuse_if(found.num_rows == 3)


def _entry(subject: ForgedTable, name: str) -> object:
    return check_entry(Entry(Version(1), name), what="a manifest store")


def _blob(subject: ForgedTable, name: str) -> object:
    """A blob outside the table that the table only references."""
    store, path = locate(subject.table.uri).resolve_external_blob(name, None)
    return store.read(path)


def _blob_below(subject: ForgedTable, name: str) -> object:
    """A blob below a base path, which is the table's own directory here."""
    blob_locations.check_relative_path(name, path="m")
    return LocalStore(Path(subject.table.uri)).read(name)


def _refuse_if(holds: bool) -> bool:
    """Raise an error if the name was not followed and no error occurred; both outcomes are acceptable."""
    if holds:
        raise LanceError("the name was not followed")
    return holds


FIELDS: Mapping[str, Use] = {
    "data file": _data,
    "data file of format 0.1": _legacy_data,
    "data file in a base": _data_in_base,
    "base of files": _base(is_root=False),
    "base that is a table": _base(is_root=True),
    "base of a deletion file": _deletions_in_base,
    "transaction file": _transaction,
    "row ids": _lineage("external_row_ids"),
    "versions in which rows were created": _lineage("external_created_at_versions"),
    "versions in which rows changed": _lineage("external_last_updated_at_versions"),
    "branch of a manifest": _branch,
    "file of an index": _index_file,
    "notes of a fragment reuse index": _reuse_file,
    "branch of a tag": _tag,
    "parent of a branch": _parent,
    "name of a tag": _given_tag,
    "name of a branch": _given_branch,
    "name of a new branch": _new_branch,
    "hint": _hint,
    "entry of a manifest store": _entry,
    "blob outside": _blob,
    "blob below a base": _blob_below,
}


def run(place: Path, every: int) -> Iterator[tuple[int, str | None]]:
    """Yield the problem of each field and name, or `None`."""
    outside, inside = place / "outside", place / "a" / "b"
    inside.mkdir(parents=True)
    outside.mkdir()
    rows = pa.table({"id": [1, 2, 3]})
    table = Table.create(inside / "t", rows, durable=False)
    canary = place / CANARY
    for path in (canary, place / "a" / CANARY, inside / CANARY, outside / CANARY):
        path.write_bytes(next(Path(table.uri, "data").iterdir()).read_bytes())
    subject = ForgedTable(table, outside)
    Path(table.uri, "_refs/tags").mkdir(parents=True)
    Path(table.uri, "_refs/branches").mkdir(parents=True)
    hostile = hostile_names(canary)
    assert len(hostile) >= 500
    uses = [(where, use, name) for where, use in FIELDS.items() for name in hostile[::every]]
    for _where, use, _name in uses[:: len(hostile[::every])]:  # load lazily imported modules before the audit starts
        _try_name(use, subject, "x.lance")
    watch = AccessAudit(place)
    allowed = (f" {table.uri}", f" {outside}/clone")
    for where, use, name in uses:
        watch.events.clear()
        problem = _try_name(use, subject, name)
        if opened := [event for event in watch.events if not any(path in event for path in allowed)]:
            problem = f"opened {opened}"
        yield 1, None if problem is None else f"{where}: {name[:80]!r}: {problem}"


def _try_name(use: Use, subject: ForgedTable, name: str) -> str | None:
    try:
        found = use(subject, name)
    except LanceError:
        return None
    except Exception as error:  # noqa: BLE001 - the test asserts that no other error occurs
        return f"{type(error).__name__}: {error}"[:300]
    return f"was followed: {str(found)[:200]}"


def main() -> None:
    place, every = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    tried, problems = 0, []
    for count, problem in run(place, every):
        tried += count
        problems += [problem] if problem else []
    print(json.dumps({"tried": tried, "found": problems}))


if __name__ == "__main__":
    main()
