"""Committed recordings: file events of short workloads, for machines without `strace` and for the planted defects.

python -m tests.syscalls.recordings     records all of them again
"""

from pathlib import Path

from tests.syscalls.events import load_events, save_events
from tests.syscalls.planted_defects import (
    IGNORED_SYNC_ERROR,
    MANIFEST_BEFORE_DATA,
    MANIFEST_BEFORE_SYNCS,
    SKIPPED_DIRECTORY_SYNC,
)
from tests.syscalls.power_loss import Recording, record_workload, workspace

DIRECTORY = Path(__file__).parent / "traces"
STEPS = ("create", "append", "delete")
SOUND = "sound"
DEFECTIVE_RUNS = {
    SKIPPED_DIRECTORY_SYNC: "",
    MANIFEST_BEFORE_DATA: "",
    MANIFEST_BEFORE_SYNCS: "",
    IGNORED_SYNC_ERROR: "fsync:error=EIO",
}
"""Planted defects, each with the fault that is injected while its workload is recorded."""


def load_recording(name: str) -> Recording:
    """Return the recording of the sound writer, or of a planted defect."""
    return Recording("ours", load_events(_path_of(name)))


def record_defect(defect: str, place: Path) -> Recording:
    return record_workload("ours", place, steps=STEPS, defect=defect, injected=DEFECTIVE_RUNS[defect])


def _path_of(name: str) -> Path:
    return DIRECTORY / f"{name.replace(' ', '-')}.xz"


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    with workspace() as place:
        save_events(_path_of(SOUND), record_workload("ours", place, steps=STEPS).events)
        for defect in DEFECTIVE_RUNS:
            save_events(_path_of(defect), record_defect(defect, place).events)


if __name__ == "__main__":
    main()
