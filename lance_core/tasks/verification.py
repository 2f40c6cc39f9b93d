"""Distributed verification: workers compare the files of a version, or of all versions, with their recorded checksums,
and decode files without one.

    report = verify_files(snapshot, runner=runner, share=1 / 30, turn=day)

Only findings come back to the driver. `fsck/contents.py` does the same in one process. Start with `verify_files`.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_core import validation
from lance_core.errors import NotFound
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.ids import Version
from lance_core.fsck import DataCheck, Extent, Finding, Report, Severity
from lance_core.fsck.contents import find_unverified, verify_one, without_removed
from lance_core.tasks.driver import TASKS_PER_SLOT, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.versions.recorded_files import RecordedFile, RecordedFiles
from lance_core.versions.snapshot import Snapshot, list_versions, load_at

_FILE_COST_BYTES = 1 << 20
"""Bytes that are read in the time that opening a file takes."""
_DECODED_FILE_BYTES = 64 << 20
"""Bytes that are read in the time that decoding a file takes, whose size is unknown if no hash is recorded."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file to verify. Picklable."""

    path: str
    owner: str
    checksum: FileChecksum | None
    first: Version
    last: Version


@dataclass(frozen=True, slots=True)
class _VerifyPartition:
    """Verifies the files of one partition in a worker."""

    partitions: tuple[tuple[_File, ...], ...]

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        # Files without a hash are decoded in another process.
        location = partition.location.as_untrusted().for_manifest(partition.manifest)
        for file in self.partitions[number]:
            recorded = RecordedFile(file.path, file.owner, file.checksum, location, file.first, file.last)
            for finding in verify_one(recorded):
                values = [
                    finding.severity.value,
                    finding.rule,
                    finding.path,
                    finding.what,
                    finding.repair,
                    finding.version,
                ]
                yield json.dumps(values).encode()


def verify_files(
    base: Snapshot, *, runner: Runner, versions: str = "head", share: float = 1.0, turn: int = 0
) -> Report:
    """Verify the files of this version, or with `versions="all"` of all versions up to it.

    With a `share` below 1, one part of the files is verified; turns 0, 1, 2, ... together verify all of them."""
    check, files, examined = DataCheck(share=share, turn=turn), RecordedFiles(), [base.version]
    extent = validation.check_choice(Extent, versions, "versions")
    files.add(base)
    for version in list_versions(base.location).numbers if extent is Extent.ALL else ():
        if version < base.version:
            try:
                files.add(load_at(base.location, version))
            except NotFound:  # a cleanup removed it
                continue
            examined.append(version)
    selected = [file for file in files if check.includes(file.path)]
    partitions = _partition(selected, runner.slots * TASKS_PER_SLOT)
    results = run_over_partitions(base, ((),) * len(partitions), _VerifyPartition(partitions), runner)
    decoded_findings = (_decode(each) for _number, answers in sorted(results.items()) for each in answers)
    findings = without_removed(decoded_findings, selected)
    findings += find_unverified(selected)
    verified = sum(file.checksum is not None for file in selected)
    return Report(base.location.uri, tuple(sorted(examined)), len(selected), tuple(findings), verified_files=verified)


def _partition(files: Sequence[RecordedFile], count: int) -> tuple[tuple[_File, ...], ...]:
    """Distribute files over at most `count` partitions of about equal size, the largest files first."""
    partitions: list[list[_File]] = [[] for _ in range(min(count, len(files)))]
    sizes = [(0, number) for number in range(len(partitions))]
    for file in sorted(files, key=_cost, reverse=True):
        cost, number = heapq.heappop(sizes)
        heapq.heappush(sizes, (cost + _cost(file), number))
        partitions[number].append(_File(file.path, file.owner, file.checksum, file.first, file.last))
    return tuple(map(tuple, partitions))


def _cost(file: RecordedFile) -> int:
    return _DECODED_FILE_BYTES if file.checksum is None else file.checksum.size + _FILE_COST_BYTES


def _decode(data: bytes) -> Finding:
    severity, rule, path, what, repair, version = json.loads(data)
    return Finding(Severity(severity), rule, path, what, repair, version)


__all__ = ["Report", "verify_files"]
