"""Table engines that the fault harnesses drive: this library, pylance and deltalake, behind one protocol.

An engine runs named steps on a table of two integer columns and reads any version of it. A library is imported when its
engine first uses it, so that a process loads only the one that it drives. Start with `ENGINES`.
"""

import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tests.syscalls.steps import BRANCH, CREATED, DELETED, RETAINED, STEPS, TAG, UPDATED_BELOW, UPSERTED

Rows = Sequence[tuple[int, int]]
"""Rows of a table as sorted pairs of `id` and `n`."""
NEWEST = "newest"
_DELETED = f"id in ({', '.join(map(str, DELETED))})"
_UPDATED = f"id < {UPDATED_BELOW}"
_INCREASED = {"n": "n + 100"}
_HOUR = 3600


class Engine(Protocol):
    """Engine with the steps that it supports, in the order of the workload. `missing_errors` has the names of the
    errors of reading a location without a table."""

    name: str
    steps: tuple[str, ...]
    missing_errors: tuple[str, ...]

    def run(self, uri: str, step: str, intent: str) -> str:
        """Run a step. Return the key of the version that it committed, or the empty text if it commits none; `NEWEST`
        if the engine does not return the version.
        """

    def append(self, uri: str, rows: Mapping[int, int], intent: str | None = None) -> str: ...

    def newest(self, uri: str, branch: str = "") -> int: ...

    def read(self, uri: str, key: str) -> Rows:
        """Read by a key: version `5`, version `dev:6` of a branch, `tag:good`, or `filter:3` for rows by an index."""

    def list_versions(self, uri: str) -> Sequence[int]: ...


def key_of(engine: Engine, uri: str, key: str) -> str:
    """Return the key of a version that a step returned."""
    return str(engine.newest(uri)) if key == NEWEST else key


def to_arrow(rows: Iterable[tuple[int, int]]) -> pa.Table:
    pairs = list(rows)
    ids, numbers = [row for row, _ in pairs], [number for _, number in pairs]
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())})


def to_rows(table: Any) -> Rows:
    return sorted(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))


class OurEngine:
    name = "ours"
    steps = tuple(STEPS)
    missing_errors: tuple[str, ...] = ("NotFound",)

    def run(self, uri: str, step: str, intent: str) -> str:
        if step == "create":
            return str(_our_tables().create(uri, to_arrow(CREATED.items()), intent=intent).version)
        if STEPS[step].rows and not STEPS[step].is_on_branch:
            return self.append(uri, STEPS[step].rows, intent)
        table = _our_tables().open(uri, branch=BRANCH if STEPS[step].is_on_branch else None)
        match step:
            case "delete":
                committed = table.delete(_DELETED, intent=intent)
            case "update":
                committed = table.update(_INCREASED, _UPDATED, intent=intent)
            case "upsert":
                committed = table.upsert(to_arrow(UPSERTED.items()), on="id", intent=intent)
            case "create index":
                committed = table.create_index("id", "BTREE", intent=intent)
            case "compact":
                committed = table.compact(intent=intent)
            case "tag":
                table.tags.create(TAG)
                return f"tag:{TAG}"
            case "branch":
                table.branches.create(BRANCH)
                return f"{BRANCH}:{table.version}"
            case "clean up":
                table.cleanup(older_than=timedelta(0), keep=RETAINED, force=True)
                return ""
            case _:
                committed = table.append(to_arrow(STEPS[step].rows.items()), intent=intent)
                return f"{BRANCH}:{committed.version}"
        return str(committed.version)

    def append(self, uri: str, rows: Mapping[int, int], intent: str | None = None) -> str:
        return str(_our_tables().open(uri).append(to_arrow(rows.items()), intent=intent).version)

    def newest(self, uri: str, branch: str = "") -> int:
        return int(_our_tables().open(uri, branch=branch or None).version)

    def read(self, uri: str, key: str) -> Rows:
        kind, _, value = key.rpartition(":")
        match kind:
            case "tag":
                return to_rows(_our_tables().open(uri).at(tag=value).to_table())
            case "filter":
                return to_rows(_our_tables().open(uri).to_table(filter=f"id = {value}"))
            case branch:
                return to_rows(_our_tables().open(uri, branch=branch or None, version=int(value)).to_table())

    def list_versions(self, uri: str) -> Sequence[int]:
        return [int(number) for number in _our_tables().open(uri).version_numbers()]


class PylanceEngine:
    name = "pylance"
    steps = tuple(STEPS)
    missing_errors: tuple[str, ...] = ("ValueError",)

    def run(self, uri: str, step: str, intent: str) -> str:
        lance = importlib.import_module("lance")
        if step == "create":
            return str(lance.write_dataset(to_arrow(CREATED.items()), uri).version)
        if STEPS[step].rows and not STEPS[step].is_on_branch:
            return self.append(uri, STEPS[step].rows)
        dataset = lance.dataset(uri)
        match step:
            case "delete":
                dataset.delete(_DELETED)
            case "update":
                dataset.update(_INCREASED, _UPDATED)
            case "upsert":
                merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(to_arrow(UPSERTED.items()))
            case "create index":
                dataset.create_scalar_index("id", "BTREE")
            case "compact":
                dataset.optimize.compact_files()
                return NEWEST
            case "tag":
                dataset.tags.create(TAG, dataset.version)
                return f"tag:{TAG}"
            case "branch":
                dataset.create_branch(BRANCH)
                return f"{BRANCH}:{dataset.version}"
            case "clean up":
                dataset.cleanup_old_versions(retain_versions=RETAINED, error_if_tagged_old_versions=False)
                return ""
            case _:
                branch = dataset.checkout_version((BRANCH, None))
                rows = to_arrow(STEPS[step].rows.items())
                return f"{BRANCH}:{lance.write_dataset(rows, branch, mode='append').version}"
        return str(dataset.version)

    def append(self, uri: str, rows: Mapping[int, int], intent: str | None = None) -> str:
        lance = importlib.import_module("lance")
        return str(lance.write_dataset(to_arrow(rows.items()), uri, mode="append").version)

    def newest(self, uri: str, branch: str = "") -> int:
        dataset = importlib.import_module("lance").dataset(uri)
        return int((dataset.checkout_version((branch, None)) if branch else dataset).version)

    def read(self, uri: str, key: str) -> Rows:
        kind, _, value = key.rpartition(":")
        lance = importlib.import_module("lance")
        match kind:
            case "tag":
                return to_rows(lance.dataset(uri).checkout_version(value).to_table())
            case "filter":
                return to_rows(lance.dataset(uri).to_table(filter=f"id = {value}"))
            case "":
                return to_rows(lance.dataset(uri, version=int(value)).to_table())
            case branch:
                return to_rows(lance.dataset(uri).checkout_version((branch, int(value))).to_table())

    def list_versions(self, uri: str) -> Sequence[int]:
        return [int(each["version"]) for each in importlib.import_module("lance").dataset(uri).versions()]


class DeltaEngine:
    name = "deltalake"
    steps = tuple(step for step in STEPS if step not in ("create index", "tag", "branch", "append to the branch"))
    missing_errors: tuple[str, ...] = ("TableNotFoundError",)

    def run(self, uri: str, step: str, intent: str) -> str:
        deltalake = importlib.import_module("deltalake")
        match step:
            case "create":
                deltalake.write_deltalake(uri, to_arrow(CREATED.items()))
            case "delete":
                deltalake.DeltaTable(uri).delete(_DELETED)
            case "update":
                deltalake.DeltaTable(uri).update(updates=_INCREASED, predicate=_UPDATED)
            case "upsert":
                source = to_arrow(UPSERTED.items())
                merger = deltalake.DeltaTable(uri).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
                merger.when_matched_update_all().when_not_matched_insert_all().execute()
            case "compact":
                deltalake.DeltaTable(uri).optimize.compact()
            case "clean up":
                deltalake.DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
            case _:
                self.append(uri, STEPS[step].rows)
        return "" if step == "clean up" else NEWEST

    def append(self, uri: str, rows: Mapping[int, int], intent: str | None = None) -> str:
        importlib.import_module("deltalake").write_deltalake(uri, to_arrow(rows.items()), mode="append")
        return NEWEST

    def newest(self, uri: str, branch: str = "") -> int:
        return int(importlib.import_module("deltalake").DeltaTable(uri).version())

    def read(self, uri: str, key: str) -> Rows:
        return to_rows(importlib.import_module("deltalake").DeltaTable(uri, version=int(key)).to_pyarrow_table())

    def list_versions(self, uri: str) -> Sequence[int]:
        return [int(each["version"]) for each in importlib.import_module("deltalake").DeltaTable(uri).history()]


ENGINES: Mapping[str, Callable[[], Engine]] = {"ours": OurEngine, "pylance": PylanceEngine, "deltalake": DeltaEngine}


def age_files(directory: Path) -> None:
    """Make all files an hour old: a cleanup of ours removes no version that is younger than a minute."""
    then = time.time() - _HOUR
    for path in directory.rglob("*"):
        os.utime(path, (then, then))


def _our_tables() -> Any:
    return importlib.import_module("lance_core").Table
