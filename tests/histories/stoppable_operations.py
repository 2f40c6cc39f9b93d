"""Every verb that changes something, as it is done by a process that can be stopped: the changes of rows and columns of
`table_operations.py` under an intent, and references, clones, versions beside the line, cleanup, which have none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lance_core import AlreadyExists, Audit, Committed, LanceError, NotFound, Table
from lance_core.format import naming
from lance_core.format.naming import NamingScheme
from lance_core.operations import Append
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from tests.histories.storage_backends import Place
from tests.histories.table_operations import CHANGES, ROWS, WORK, rows
from tests.lance_core.meeting import landed_together
from tests.lance_core.transactions.moves import fragments
from tests.lance_core.world import cleaned

INTENT = "the same every time"


@dataclass(frozen=True)
class Scene:
    """A table and a process."""

    place: Place
    manifests: ManifestStore | None

    @property
    def uri(self) -> str:
        return self.place.uri

    @property
    def beside(self) -> str:
        return f"{self.uri}-beside"

    def table(self, *, version: int | None = None, branch: str | None = None) -> Table:
        return Table.open(self.uri, version=version, branch=branch, manifest_store=self.manifests, durable=False)

    def exists(self, uri: str) -> bool:
        return Table.exists(uri, manifest_store=self.manifests)

    def names(self) -> list[str]:
        store = self.table()._location.own_store
        return [info.path.rpartition("/")[2] for info in store.list(naming.VERSIONS)]


def nothing(_scene: Scene) -> None:
    """The table is as it was begun."""


@dataclass(frozen=True)
class Deed:
    do: Callable[[Scene], Committed | object]
    prepare: Callable[[Scene], object] = nothing
    once: bool = True
    """Whether it has an intent."""
    done: tuple[type[LanceError], ...] = ()
    """What a repetition is told that has nothing left to do."""
    in_steps: bool = False
    """Whether what it does is seen before all of it is done."""
    is_new: bool = False
    """Whether there is no table before it."""
    then: Callable[[Scene], object] = nothing
    """What has to be possible after it."""
    alone: bool = False
    """Whether it is for tables without a manifest store."""

    def fits(self, place: str) -> bool:
        return not self.alone or place in ("memory", "disk", "bucket", "bucket of an emulator")


def seen(table: Table, base: Table | None) -> None:
    """An audit that passes what it can read."""
    assert table.to_table().num_rows == table.count_rows()
    assert base is None or base.version < table.version


def _made(scene: Scene, audit: Audit | None = None) -> object:
    begin = rows(0, ROWS)
    return Table.create(
        scene.uri, begin, manifest_store=scene.manifests, intent=INTENT, properties=WORK, audit=audit, durable=False
    )  # fmt: skip


def _changed(name: str) -> Deed:
    return Deed(lambda scene: CHANGES[name](scene.table(), INTENT))


def _audited(do: Callable[[Table, dict[str, Any]], Committed], audit: Audit | None = seen) -> Deed:
    return Deed(lambda scene: do(scene.table(), {"intent": INTENT, "properties": WORK, "audit": audit}))


def _detached(scene: Scene) -> Committed:
    table = scene.table()
    return table.commit(Append(fragments(table._snapshot, rows(700, 1))), detached=True, properties=WORK)


def _publish(scene: Scene) -> Committed:
    (number,) = filter(None, map(naming.parse_detached_name, scene.names()))
    return scene.table().publish(number)


def _old_names(scene: Scene) -> None:
    table = scene.table()
    store = table._location.own_store
    for number in table.version_numbers():
        path = naming.manifest_path(number)
        store.put(naming.manifest_path(number, NamingScheme.V1), store.read(path))
        store.delete(path)


def _on_branch(scene: Scene) -> Committed:
    return scene.table(branch="dev").append(rows(800, 1), intent=INTENT, properties=WORK)


def _together(scene: Scene) -> object:
    """Of three, in one file. Each has an intent of its own."""
    brought = [rows(800 + number, 1 + number) for number in (0, 10, 20)]
    return landed_together(scene.table(), *brought, intent=INTENT, properties=WORK)


def _cleaned(scene: Scene) -> object:
    return cleaned(scene.table())


DEEDS: Mapping[str, Deed] = {
    "create": Deed(_made, is_new=True),
    **{name: _changed(name) for name in (
        "append", "append several files", "overwrite", "delete row 0", "delete fragment 0", "update row 0",
        "update v of fragment 0", "update v everywhere", "upsert keys 0 and 100", "upsert v of fragment 0",
        "upsert deletes rows 1 and 6", "add z of nulls", "add z from v", "merge z", "drop v", "reorder", "rename v",
        "recast v", "make v mandatory", "config a=1", "metadata a=1", "schema metadata a", "field metadata v",
        "restore 1", "compact", "add base x",
    )},
    "append together": Deed(_together, in_steps=True),
    "create, audited": Deed(lambda scene: _made(scene, seen), is_new=True),
    "append, audited": _audited(lambda table, how: table.append(rows(700, 3), **how)),
    "delete, audited": _audited(lambda table, how: table.delete("id = 3", **how)),
    "overwrite a slice": _audited(lambda table, how: table.overwrite(rows(3, 2), where="id in (3, 4)", **how), None),
    "append to a branch": Deed(_on_branch, prepare=lambda scene: scene.table().branches.create("dev")),
    "tag": Deed(lambda scene: scene.table().tags.create("good", 2), once=False, done=(AlreadyExists,)),
    "move a tag": Deed(lambda scene: scene.table().tags.update("t", 3),
        prepare=lambda scene: scene.table().tags.create("t", 1), once=False),
    "delete a tag": Deed(lambda scene: scene.table().tags.delete("t"),
        prepare=lambda scene: scene.table().tags.create("t", 1), once=False, done=(NotFound,),
        then=lambda scene: scene.table().tags.create("t", 2)),
    "branch": Deed(lambda scene: scene.table().branches.create("dev"), once=False, done=(AlreadyExists,),
        then=_on_branch),
    "delete a branch": Deed(lambda scene: scene.table().branches.delete("dev"),
        prepare=lambda scene: scene.table().branches.create("dev").append(rows(800, 1)), once=False,
        done=(NotFound,), then=lambda scene: scene.table().branches.create("dev")),
    "shallow clone": Deed(lambda scene: scene.table().clone(scene.beside), once=False, done=(AlreadyExists,)),
    "deep clone": Deed(lambda scene: scene.table().clone(scene.beside, shallow=False), once=False,
        done=(AlreadyExists,)),
    "detached": Deed(_detached, once=False, in_steps=True),
    "publish": Deed(_publish, prepare=_detached, once=False),
    "cleanup": Deed(_cleaned, once=False, in_steps=True),
    "migrate names": Deed(lambda scene: scene.table(version=1).migrate_manifest_names(), prepare=_old_names,
        once=False, in_steps=True, alone=True),
}  # fmt: skip
"""By what it does."""
