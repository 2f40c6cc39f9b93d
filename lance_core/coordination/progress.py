"""The memory of work that may be interrupted: one small record for each fragment that is done, under the work's key.

    _lance_assets/work/{sha256 of the key}/plan.json               what the work is; the same key is no other work
    _lance_assets/work/{sha256 of the key}/fragment-{number}.bin   a fragment as it was, with the file written for it

A record is put when its file is complete, by whoever wrote it. It promises nothing: the file may be gone, the fragment
another one by now; who finds it looks. Records go when their work has landed, and when nobody heard of it for long
(`maintenance/retention_guards.py`). What the work is, this module does not know.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.limits import INTENT_BYTES
from lance_core.storage.store import Put, Store, load_details, read_whole
from lance_core.storage.tree_operations import remove_empty_directories

DIRECTORY = f"{naming.PROJECT_DIRECTORY}/work"
_PLAN = "plan.json"
_RECORD = re.compile(r"fragment-(\d+)\.bin")
_KEY_CHARACTERS_MAX = 4096


def directory_of(key: str) -> str:
    return f"{DIRECTORY}/{hashlib.sha256(key.encode()).hexdigest()}"


def check_resume_key(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_CHARACTERS_MAX:
        raise InvalidInput(f"a resume_key is a text of 1 to {_KEY_CHARACTERS_MAX:,} characters, not {key!r:.80}")


def claim(store: Store, key: str, plan: Mapping[str, str]) -> None:
    """That this key stands for this work, from now on or since somebody began it."""
    path = f"{directory_of(key)}/{_PLAN}"
    mine = json.dumps({"key": key, **plan}, sort_keys=True, indent=1).encode()
    if store.create(path, mine) is Put.CREATED:
        return
    try:
        there = json.loads(read_whole(store, path, INTENT_BYTES))
    except NotFound as error:
        raise StorageError(f"{store.description}: whether {path} was written is not known; repeat it") from error
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"is no JSON: {error}", path=path, field="plan") from error
    ours = json.loads(mine)
    if there != ours:
        other = sorted(name for name in ours if not isinstance(there, dict) or there.get(name) != ours[name])
        raise InvalidInput(
            f"{store.description}: resume_key {key!r} stands for other work already: it differs in {', '.join(other)}. "
            "Give this work a key of its own"
        )


def record_fragment(store: Store, directory: str, done: Fragment) -> None:
    store.put(f"{directory}/fragment-{done.id}.bin", done.encode())


def completed_fragments(store: Store, directory: str) -> Iterator[Fragment]:
    """What has been noted. A record that cannot be read counts for nothing: its fragment is done once more."""
    for listed in store.list(directory):
        matched = _RECORD.fullmatch(listed.path.rpartition("/")[2])
        if matched is None:
            continue
        with suppress(NotFound, Corrupt):
            fragment = Fragment.decode(read_whole(store, listed.path, INTENT_BYTES))
            if fragment.id == int(matched[1]):
                yield fragment


def completed_ids(store: Store, directory: str) -> set[int]:
    """Of the fragments that have been noted."""
    found = (_RECORD.fullmatch(listed.path.rpartition("/")[2]) for listed in store.list(directory))
    return {int(matched[1]) for matched in found if matched}


def remove_fragment(store: Store, directory: str, number: int) -> None:
    store.delete(f"{directory}/fragment-{number}.bin")


def remove_records(store: Store, directory: str) -> None:
    """The plan last: as long as there is a record, what it belongs to can be told. At best effort, since a cleanup
    does it too."""
    with suppress(StorageError):
        paths = [listed.path for listed in store.list(directory)]
        for path in sorted(paths, key=lambda path: path.endswith(_PLAN)):
            store.delete(path)
        remove_empty_directories(store, directory)


def last_activity(store: Store) -> dict[str, datetime]:
    """The directories of all work, each with when the last of its records was put."""
    last: dict[str, datetime] = {}
    for info in load_details(store.walk(DIRECTORY)):
        directory = info.path.rpartition("/")[0]
        last[directory] = max(info.modified, last.get(directory, info.modified))
    return last
