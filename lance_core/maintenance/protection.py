"""What keeps a version, or a file, however old it is: tags, branches, clones that are known, work under way.

All of it is read anew whenever it is asked for, since it may change while a cleanup runs. Nothing is written here.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from lance_core import intents
from lance_core.errors import Corrupt, NotFound
from lance_core.format import naming, refs
from lance_core.format.ids import Version
from lance_core.inventory import Line
from lance_core.refs import read_branches, read_tags
from lance_core.storage.store import Store

INTENT_MEMORY = timedelta(days=30)


def reasons(line: Line) -> dict[Version, list[str]]:
    """Versions of this line that somebody has named, and who."""
    found: dict[Version, list[str]] = {}
    for name, tag in read_tags(line.root).items():
        if tag.branch == line.branch:
            found.setdefault(tag.version, []).append(f"tag {name}")
    for name, branch in read_branches(line.root).items():
        if branch.parent_branch == line.branch:
            found.setdefault(branch.parent_version, []).append(f"branch {name}")
    for version, uri in _clones(line.location.store):
        found.setdefault(version, []).append(f"clone {uri}")
    return found


def of_live_intents(store: Store, *, now: datetime, patience: timedelta) -> set[str]:
    """Files of work that has not landed, and was heard of within `patience`."""
    return {
        f"{naming.DATA}/{file}"
        for listed, record in intents.records(store)
        if record.landing is None and now - listed.modified < patience
        for file in record.files
    }


def outlived_intents(store: Store, *, now: datetime) -> list[str]:
    """Records that landed so long ago that nobody will repeat them."""
    return [
        listed.path
        for listed, record in intents.records(store)
        if record.landing is not None and now - listed.modified > INTENT_MEMORY
    ]


def _clones(store: Store) -> Iterator[tuple[Version, str]]:
    for listed in store.list(refs.CLONES):
        try:
            record = json.loads(store.read(listed.path))
            yield Version(int(record["version"])), str(record["uri"])
        except NotFound:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"is not the record of a clone: {error}", path=listed.path, field="clone") from error
