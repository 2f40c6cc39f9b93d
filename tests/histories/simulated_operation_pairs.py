"""Two changes that meet, each pair in another way."""

from tests.histories.simulated_operations import Verb

FIRST = frozenset({"r0", "r1"})
SECOND = frozenset({"r1", "r2"})
NEW = frozenset({"r1", "k0"})
PAIRS = {
    "appends": (Verb("append", "a"), Verb("append", "b")),
    "deletions of one fragment": (Verb("delete", "a", frozenset({"r0"})), Verb("delete", "b", frozenset({"r1"}))),
    "deletions of one row": (Verb("delete", "a", FIRST), Verb("delete", "b", SECOND)),
    "an update beside a delete": (Verb("move", "a", FIRST), Verb("delete", "b", SECOND)),
    "a column beside an update": (Verb("rewrite column", "a", FIRST), Verb("move", "b", frozenset({"r2"}))),
    "upserts of one key": (Verb("upsert", "a", NEW), Verb("upsert", "bb", NEW)),
    "an upsert beside an append": (Verb("upsert", "a", NEW), Verb("append a key", "b", frozenset({"k0"}))),
    "a compaction beside a delete": (Verb("compact", "a"), Verb("delete", "b", frozenset({"r1"}))),
    "a column added beside an append": (Verb("add column", "a"), Verb("append", "b")),
    "an overwrite beside an append": (Verb("overwrite", "a", again=False), Verb("append", "b", again=False)),
}
