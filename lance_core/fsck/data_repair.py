"""Repair of data files: replaces a damaged or missing file by a copy from another table, such as a clone.

A copy is valid if its bytes have the checksum that the commit recorded. It is written next to the damaged file, made
durable and compared once more, and then takes the name of the damaged file in one step.
"""

from functools import partial

from lance_core.datafiles.checksums import verify_file
from lance_core.errors import Corrupt, LanceError
from lance_core.format.naming import split_qualified_path
from lance_core.fsck.report import Repair, RepairKind
from lance_core.storage.store import Store
from lance_core.storage.tree_operations import replace_file
from lance_core.versions.location import Location
from lance_core.versions.recorded_files import RecordedFile


def find_repair(file: RecordedFile, sources: tuple[str, ...]) -> Repair | None:
    """Return the repair of a file from the first source that has its bytes; `None` if no source has them."""
    if split_qualified_path(file.path)[0] is not None:
        return None  # it belongs to another table, which has to be repaired itself
    for uri in sources:
        source = file.location.locate_other(uri)
        if (path := _find_copy(file, source)) is not None:
            what = f"Replace {file.path} by the copy at {source.uri}/{path}, which has the recorded hash."
            return Repair(RepairKind.DATA_FILES, what, partial(_restore, file, source.store, path))
    return None


def _find_copy(file: RecordedFile, source: Location) -> str | None:
    """Return the path of a copy with the right bytes: in another table, or in a directory of data files."""
    assert file.checksum is not None
    for path in (file.path, file.path.partition("/")[2]):
        try:
            verify_file(source.store, path, file.checksum)
        except LanceError:
            continue
        return path
    return None


def _restore(file: RecordedFile, source: Store, path: str) -> str:
    target, checksum = file.location.own_store, file.checksum
    assert checksum is not None
    try:
        verify_file(target, file.path, checksum)
    except LanceError:
        pass
    else:
        return "the file has the recorded hash now; nothing was changed"
    try:
        replace_file(source, path, target, file.path, check=partial(verify_file, checksum=checksum))
    except Corrupt as problem:
        return f"nothing was changed: the copy {problem.what}"
    return "done; the file has the recorded hash"
