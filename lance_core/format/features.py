"""Feature flags: two words in every manifest that state what a reader and a writer must support.

An unknown bit is refused, because a reader that guesses could miss rows or return them twice. Both words are
recomputed on each commit from the contents of the version, except for sticky bits, which stay set.
"""

import enum

from lance_core.errors import Unsupported


class Feature(enum.IntFlag):
    DELETION_FILES = 1
    STABLE_ROW_IDS = 2
    V2_FORMAT_HINT = 4
    TABLE_CONFIG = 8
    BASE_PATHS = 16
    NO_TRANSACTION_FILE = 32
    DATA_OVERLAYS = 64
    COVERED_INDICES = 128
    MIXED_FILE_VERSIONS = 256
    FRAGMENT_REUSE_WITH_ROW_IDS = 512
    FRAGMENT_REUSE_INDEX = 1024
    SPILLED_ROW_LINEAGE = 2048
    MANAGED_BLOBS = 16384
    NON_REUSABLE_FIELD_IDS = 32768


READABLE = (
    Feature.DELETION_FILES
    | Feature.STABLE_ROW_IDS
    | Feature.V2_FORMAT_HINT
    | Feature.TABLE_CONFIG
    | Feature.BASE_PATHS
    | Feature.NO_TRANSACTION_FILE
    | Feature.DATA_OVERLAYS
    | Feature.COVERED_INDICES
    | Feature.MIXED_FILE_VERSIONS
)
WRITABLE = (
    Feature.DELETION_FILES
    | Feature.STABLE_ROW_IDS
    | Feature.V2_FORMAT_HINT
    | Feature.TABLE_CONFIG
    | Feature.BASE_PATHS
    | Feature.NO_TRANSACTION_FILE
    | Feature.DATA_OVERLAYS
    | Feature.MIXED_FILE_VERSIONS
)
STICKY = Feature.MIXED_FILE_VERSIONS
PAIRED = Feature.MIXED_FILE_VERSIONS | Feature.FRAGMENT_REUSE_INDEX | Feature.MANAGED_BLOBS
"""Bits that are valid only if both words have them."""


def check_readable(reader_flags: int, writer_flags: int, *, what: str) -> None:
    if unknown := reader_flags & ~int(READABLE):
        raise Unsupported(
            f"{what} needs reader features {_flag_names(unknown)}, which this version of the library cannot read"
        )
    if halves := (reader_flags ^ writer_flags) & int(PAIRED):
        raise Unsupported(
            f"{what} sets features {_flag_names(halves)} in only one of its two flag words; check the table with fsck"
        )


def check_writable(writer_flags: int, *, what: str) -> None:
    if unknown := writer_flags & ~int(WRITABLE):
        raise Unsupported(
            f"{what} needs writer features {_flag_names(unknown)}; this version of the library can read it but not "
            "change it"
        )


def _flag_names(bits: int) -> str:
    names = []
    for position in range(bits.bit_length()):
        if bit := bits & (1 << position):
            names.append(f"{bit} ({Feature(bit).name})" if bit in Feature._value2member_map_ else str(bit))
    return ", ".join(names)
