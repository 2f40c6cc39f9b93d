"""Progress records: remember which fragments of a resumable job are done, by the key of the job.

    _lance_assets/work/{sha256 of the key}/plan.json               description of the job, which owns the key
    _lance_assets/work/{sha256 of the key}/fragment-{number}.bin   the fragment as it was read, with the new file
    _lance_assets/work/{sha256 of the key}/rows-{number}.bin       what else its job records about the fragment
    _lance_assets/work/{sha256 of the key}/segment-{uuid}.json     an index segment, and its fragments as they were read

The worker that wrote a file puts its record when the file is complete. A record guarantees nothing: the file may be
gone, and the table's fragment may have changed; the reader of a record checks both. Records are removed when their job
is committed, and when the job has been idle for a long time (`maintenance/retention_guards.py`). This module does not
know what a job does. Start with `claim`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.limits import INTENT_BYTES
from lance_core.storage.store import Put, Store, load_details, read_whole
from lance_core.storage.tree_operations import remove_empty_directories

DIRECTORY = f"{naming.PROJECT_DIRECTORY}/work"
_PLAN = "plan.json"
_RECORD = re.compile(r"fragment-(\d+)\.bin")
_SEGMENT_RECORD = re.compile(r"segment-[0-9a-f-]{36}\.json")
_KEY_CHARACTERS_MAX = 4096


def directory_of(key: str) -> str:
    return f"{DIRECTORY}/{hashlib.sha256(key.encode()).hexdigest()}"


def check_resume_key(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_CHARACTERS_MAX:
        raise InvalidInput(f"a resume_key is a text of 1 to {_KEY_CHARACTERS_MAX:,} characters, not {key!r:.80}")


def claim(store: Store, key: str, plan: Mapping[str, str]) -> None:
    """Claim a key for a job, or confirm that it belongs to this job. Raise `InvalidInput` if it belongs to another."""
    path = f"{directory_of(key)}/{_PLAN}"
    encoded = json.dumps({"key": key, **plan}, sort_keys=True, indent=1).encode()
    if store.create(path, encoded) is Put.CREATED:
        return
    try:
        existing = json.loads(read_whole(store, path, INTENT_BYTES))
    except NotFound as error:
        raise StorageError(
            f"{store.description}: it is not known whether {path} was written; repeat the call"
        ) from error
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"is not JSON: {error}", path=path, field="plan") from error
    ours = json.loads(encoded)
    if existing != ours:
        theirs = existing if isinstance(existing, dict) else {}
        different = sorted(name for name in ours if theirs.get(name) != ours[name])
        raise InvalidInput(
            f"{store.description}: resume_key {key!r} belongs to another job already, which differs in "
            f"{', '.join(different)}. Give this job a key of its own"
        )


def record_fragment(store: Store, directory: str, done: Fragment, details: bytes | None = None) -> None:
    """Record a fragment. `details` are put first, so a record is complete if the fragment can be read."""
    if details is not None:
        store.put(f"{directory}/rows-{done.id}.bin", details)
    store.put(f"{directory}/fragment-{done.id}.bin", done.encode())


def recorded_details(store: Store, directory: str, fragment_id: int) -> bytes | None:
    """Read the details of a fragment; `None` if it has none."""
    try:
        return read_whole(store, f"{directory}/rows-{fragment_id}.bin", INTENT_BYTES)
    except (NotFound, Corrupt):
        return None


def completed_fragments(store: Store, directory: str) -> Iterator[Fragment]:
    """Read the recorded fragments. A record that cannot be read is skipped, and its fragment is computed again."""
    for listed in store.list(directory):
        matched = _RECORD.fullmatch(listed.path.rpartition("/")[2])
        if matched is None:
            continue
        with suppress(NotFound, Corrupt):
            fragment = Fragment.decode(read_whole(store, listed.path, INTENT_BYTES))
            if fragment.id == int(matched[1]):
                yield fragment


def completed_ids(store: Store, directory: str) -> set[int]:
    """List the ids of the recorded fragments."""
    matches = (_RECORD.fullmatch(listed.path.rpartition("/")[2]) for listed in store.list(directory))
    return {int(matched[1]) for matched in matches if matched}


def remove_fragment(store: Store, directory: str, fragment_id: int) -> None:
    store.delete(f"{directory}/fragment-{fragment_id}.bin")
    store.delete(f"{directory}/rows-{fragment_id}.bin")


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """Index segment that no version references yet."""

    segment: IndexMetadata
    fragments: tuple[bytes, ...]
    """Encoded fragments whose rows it has."""


def record_segment(store: Store, directory: str, recorded: RecordedSegment) -> None:
    encoded = {
        "segment": base64.b64encode(recorded.segment.encode()).decode(),
        "fragments": [base64.b64encode(each).decode() for each in recorded.fragments],
    }
    store.put(f"{directory}/segment-{recorded.segment.uuid}.json", json.dumps(encoded).encode())


def completed_segments(store: Store, directory: str) -> Iterator[RecordedSegment]:
    """Read the recorded segments. A record that cannot be read is skipped, and its segment is built again."""
    for listed in store.list(directory):
        if _SEGMENT_RECORD.fullmatch(listed.path.rpartition("/")[2]):
            with suppress(NotFound, Corrupt, ValueError, KeyError, TypeError, DecodeError):
                record = json.loads(read_whole(store, listed.path, INTENT_BYTES))
                segment = IndexMetadata.decode(base64.b64decode(record["segment"]))
                yield RecordedSegment(segment, tuple(map(base64.b64decode, record["fragments"])))


def remove_records(store: Store, directory: str) -> None:
    """Remove all records of a job, the plan last: while a record exists, the job it belongs to can be identified.
    Errors are ignored, since cleanup removes the records too."""
    assert directory.startswith(f"{DIRECTORY}/"), directory
    with suppress(StorageError):
        paths = [listed.path for listed in store.list(directory)]
        for path in sorted(paths, key=lambda path: path.endswith(_PLAN)):
            store.delete(path)
        remove_empty_directories(store, directory)


def last_activity(store: Store) -> dict[str, datetime]:
    """Return the directories of all jobs with the time at which the last record of each was put."""
    last: dict[str, datetime] = {}
    for info in load_details(store.walk(DIRECTORY)):
        directory = info.path.rpartition("/")[0]
        last[directory] = max(info.modified, last.get(directory, info.modified))
    return last
