"""What those who remove old things and those who begin to use them tell each other.

    hold     "version 7 is about to be restored", "these files are about to be named": a cleanup that reads it leaves
             them alone
    notice   "these versions go, and these files": written by a cleanup before it looks at names, holds and intents for
             the last time

Each writes its own word first and only then looks for the other's, so that of two who meet at least one sees the other:
the cleanup spares what is held, and who comes to hold what was given notice of is refused. A word is taken back when
its work is done. One that a killed process left behind counts for `REMEMBERED`, by the store's clock.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from lance_core.errors import Corrupt, NotFound, StorageError
from lance_core.format import naming
from lance_core.limits import INTENT_BYTES
from lance_core.ports import Ports
from lance_core.storage.store import ObjectInfo, Store, read_whole, with_facts

REMEMBERED = timedelta(days=30)
_HOLDS = f"{naming.OWN}/holds"
_NOTICES = f"{naming.OWN}/notices"


@dataclass(frozen=True, slots=True)
class Hold:
    """Work that is about to use what is there, and no version names for it yet."""

    what: str
    version: int | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """What a cleanup is about to remove, from its table's root."""

    versions: tuple[int, ...]
    files: tuple[str, ...]
    """Those that no version names; what only the versions name goes with them."""


def hold(store: Store, wanted: Hold, ports: Ports) -> str:
    """The name of the hold, for `release`. Refused where a cleanup may be removing what is wanted: ask for it before
    looking whether it is there."""
    path = f"{_HOLDS}/{ports.new_uuid().hex}.json"
    store.put(path, json.dumps({"what": wanted.what, "version": wanted.version, "files": wanted.files}).encode())
    try:
        check_stays(store, wanted)
    except StorageError:
        release(store, path)
        raise
    return path


def release(store: Store, path: str) -> None:
    """Of a hold or a notice: it is done. At best effort, since it is forgotten by itself."""
    with suppress(StorageError):
        store.delete(path)


def held(store: Store, *, now: datetime) -> Iterator[Hold]:
    for listed, record in _records(store, _HOLDS):
        if now - listed.modified > REMEMBERED:
            continue
        what, version, files = record.get("what"), record.get("version"), record.get("files")
        if not isinstance(what, str) or not isinstance(version, int | None) or not isinstance(files, list):
            raise Corrupt("is not the record of a hold", path=listed.path, field="hold")
        yield Hold(what, version, tuple(map(str, files)))


def give_notice(store: Store, notice: Notice, ports: Ports) -> str:
    """The name of the notice, for `release`."""
    path = f"{_NOTICES}/{ports.new_uuid().hex}.json"
    store.put(path, json.dumps({"versions": notice.versions, "files": notice.files}).encode())
    return path


def notices(store: Store) -> Iterator[tuple[ObjectInfo, Notice]]:
    for listed, record in _records(store, _NOTICES):
        versions, files = record.get("versions"), record.get("files")
        if not (isinstance(versions, list) and isinstance(files, list)):
            raise Corrupt("is not the notice of a cleanup", path=listed.path, field="notice")
        yield listed, Notice(tuple(map(int, versions)), tuple(map(str, files)))


def check_stays(store: Store, wanted: Hold) -> None:
    """That no cleanup has given notice of it."""
    for listed, notice in notices(store):
        if wanted.version in notice.versions:
            raise _going(store, listed, f"version {wanted.version}", wanted.what)
        if going := set(wanted.files) & set(notice.files):
            raise _going(store, listed, f"{len(going)} of its files, {min(going)} for one,", wanted.what)


def _going(store: Store, notice: ObjectInfo, thing: str, what: str) -> StorageError:
    return StorageError(
        f"{store.description}: {what} cannot be done, since {thing} may be going at this moment: a cleanup gave notice "
        f"of it ({notice.path}). Repeat it when the cleanup is over; one that was killed is finished by the next one"
    )


def _records(store: Store, directory: str) -> Iterator[tuple[ObjectInfo, dict[str, object]]]:
    for listed in with_facts(store.list(directory)):
        try:
            record = json.loads(read_whole(store, listed.path, INTENT_BYTES))
        except NotFound:
            continue
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"is no JSON: {error}", path=listed.path, field="record") from error
        if not isinstance(record, dict):
            raise Corrupt("is no JSON object", path=listed.path, field="record")
        yield listed, record
