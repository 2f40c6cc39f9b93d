"""Content verification: compares every file with the checksum that a commit recorded, in parallel. Files without a hash
are decoded instead (`decoding.py`).

    check = DataCheck(resume="verified.jsonl")
    examine(location, data=check)

Files of large tables take hours to read, so the verification reports its progress, and keeps a record of verified
files from which an interrupted run continues. Start with `verify_contents`.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, commit_with_retry
from lance_core.datafiles.checksums import verify_file
from lance_core.errors import Corrupt, InvalidInput, LanceError, NotFound, Unsupported
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.operations import UpdateConfig
from lance_core.fsck.data_check import DataCheck
from lance_core.fsck.data_repair import find_repair
from lance_core.fsck.decoding import decode_file
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.progress import reporter
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.parallel import map_in_order
from lance_core.versions.location import Location
from lance_core.versions.recorded_files import RecordedFile, find_missing_checksums, find_referenced
from lance_core.versions.snapshot import load_latest

RULE = "checksum"
_DECODING_RULE = "decoding"
_REPAIR = (
    "Restore it from a copy: --repair data-files --source URI copies it from a clone that has the same bytes. "
    "Otherwise restore a version without it, delete the rows of its fragment, or build the index again."
)
_MISSING = "it does not exist"
_RECORD_MAX_AGE_SECONDS = 30 * 24 * 3600
"""Age from which an entry of an interrupted run is ignored."""


def verify_contents(
    files: Iterable[RecordedFile], check: DataCheck, writer_location: Location
) -> tuple[int, Sequence[Finding]]:
    """Verify the files, whose locations are untrusted. Return the number of files that were compared with their hash,
    and the findings."""
    chosen = [file for file in files if check.includes(file.path)]
    run = _Run(check, [file for file in chosen if file.checksum is not None])
    decoded = map_in_order(_decode_one, [file for file in chosen if file.checksum is None])
    findings = without_removed(chain(run.findings(), chain.from_iterable(decoded)), chosen)
    run.finish()
    record = partial(_record_checksums, writer_location)
    fix = Repair(RepairKind.CHECKSUMS, "Record the hashes of the files.", record)
    findings += (replace(each, automatic_repair=fix) for each in find_unverified(chosen))
    return run.count, findings


def find_unverified(files: Sequence[RecordedFile]) -> Iterator[Finding]:
    """Yield one finding for all files without a recorded hash."""
    unhashed = [file for file in files if file.checksum is None]
    if unhashed:
        what = (
            f"no hash is recorded for {len(unhashed)} of {len(files)} files, so their rows were decoded instead, which "
            "does not detect every damage"
        )
        repair = "Record the hashes of their present bytes: table.record_checksums(), or --repair checksums."
        yield Finding(Severity.INFO, "no_checksum", unhashed[0].path, what, repair, unhashed[0].last)


def _record_checksums(writer_location: Location) -> str:
    base = load_latest(writer_location)
    missing = find_missing_checksums(base)
    if not missing:
        return "all files of the newest version have one already"
    operation = UpdateConfig(checksums=missing)
    result = commit_with_retry(
        Change("record_checksums", lambda _base: operation, can_replan=False),
        base.location,
        base,
        intent=None,
        properties={},
        retries=ATTEMPTS,
        runtime=SYSTEM_RUNTIME,
    )
    return f"version {result.snapshot.version} records {len(missing)} of them"


class _Run:
    """One run of a verification."""

    def __init__(self, check: DataCheck, files: Sequence[RecordedFile]) -> None:
        self._check = check
        self._record = None if check.resume is None else Path(check.resume)
        done = set() if self._record is None else set(_read_record(self._record))
        self._files = [file for file in files if (file.path, file.checksum) not in done]
        self._total = sum(file.checksum.size for file in files if file.checksum)
        self._bytes = self._total - sum(file.checksum.size for file in self._files if file.checksum)
        self._report = reporter()  # of this thread; other threads verify the files
        self._lock = threading.Lock()
        self.count = len(self._files)

    def findings(self) -> Iterator[Finding]:
        for found in map_in_order(self._verify, self._files):
            yield from found

    def finish(self) -> None:
        """Remove the record: the next run verifies all files again."""
        if self._record is not None:
            self._record.unlink(missing_ok=True)

    def _verify(self, file: RecordedFile) -> Sequence[Finding]:
        found = [self._with_repair(each, file) for each in verify_one(file, self._add_bytes)]
        with self._lock:
            if self._record is not None and not found:
                _append_record(self._record, file)
        return found

    def _with_repair(self, finding: Finding, file: RecordedFile) -> Finding:
        sources = self._check.sources
        repair = find_repair(file, sources) if finding.severity is Severity.ERROR and sources else None
        return replace(finding, automatic_repair=repair)

    def _add_bytes(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            self._report_progress()

    def _report_progress(self) -> None:
        """Report the state, which does not change meanwhile, because the caller holds the lock."""
        if self._report is not None:
            self._report("verify files", self._bytes, self._total, "bytes")


def _decode_one(file: RecordedFile) -> Sequence[Finding]:
    return list(verify_one(file))


def verify_one(file: RecordedFile, on_bytes: Callable[[int], None] | None = None) -> Iterator[Finding]:
    """Yield a finding if the file differs from its checksum, does not exist or cannot be read. A file without a hash is
    decoded; its location is untrusted."""
    rule = RULE if file.checksum is not None else _DECODING_RULE
    try:
        if file.checksum is None:
            decode_file(file.location, file.path)
        else:
            store, path = file.location.resolve(file.path)
            verify_file(store, path, file.checksum, on_bytes)
    except NotFound:
        what = f"{_MISSING} ({file.description})"
        yield Finding(Severity.ERROR, RULE, file.path, what, _REPAIR, file.first)
    except Corrupt as found:
        what = f"it {found.what.partition('. ')[0]} ({file.description})"
        yield Finding(Severity.ERROR, rule, file.path, what, _REPAIR, file.first)
    except Unsupported as unknown:
        what = f"it was not decoded: {unknown} ({file.description})"
        yield Finding(Severity.WARNING, rule, file.path, what, "Check it with a newer release.", file.first)
    except InvalidInput as refused:
        what = f"it is outside the table and was not verified: {refused}"
        repair = "Open the table with this location in bases=."
        yield Finding(Severity.WARNING, "outside", file.path, what, repair, file.first)
    except LanceError as failed:
        what = f"it could not be read: {failed} ({file.description})"
        repair = "Try again." if rule == RULE else f"Try again. {_REPAIR}"
        yield Finding(Severity.ERROR, rule, file.path, what, repair, file.first)


def without_removed(findings: Iterable[Finding], files: Iterable[RecordedFile]) -> list[Finding]:
    """Return the findings without those of missing files that no version references any more, since a concurrent
    cleanup removed them with their versions. `files` includes all files with findings."""
    found = list(findings)
    missing = {each.path for each in found if _is_missing(each)}
    removed = missing - find_referenced(file for file in files if file.path in missing)
    return [each for each in found if not (_is_missing(each) and each.path in removed)]


def _is_missing(finding: Finding) -> bool:
    return finding.rule == RULE and finding.what.startswith(_MISSING)


def _read_record(record: Path) -> Iterator[tuple[str, FileChecksum]]:
    """Yield the verified files of an interrupted run. Lines that are damaged or too old are left out."""
    with suppress(FileNotFoundError), record.open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if time.time() - entry["time"] < _RECORD_MAX_AGE_SECONDS:
                    yield entry["path"], FileChecksum(entry["size"], int(entry["xxh3"], 16))


def _append_record(record: Path, file: RecordedFile) -> None:
    assert file.checksum is not None
    checksum = {"size": file.checksum.size, "xxh3": f"{file.checksum.xxh3 or 0:016x}"}
    with record.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"path": file.path, **checksum, "time": int(time.time())}) + "\n")
