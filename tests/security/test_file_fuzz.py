"""A slice of T-FILES (`make fuzz-files`): damaged data, deletion and index files, read in the process and contained."""

import subprocess
import sys


def test_damaged_files_never_hang_or_raise_untyped_errors() -> None:
    """The harness exits with 1 if a reader hangs or raises an untyped error, or if a contained one ends. It runs in a
    process without threads of the codec, since it forks."""
    arguments = [
        "--structured",
        "120",
        "--every",
        "1500",
        "--seconds",
        "6",
        "--seed",
        "7",
        "--readers",
        "ours,contained,verified",
    ]
    command = [sys.executable, "-m", "tests.torture.data_files", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-2_000:]
    assert "contained 0 of" in done.stdout
    assert "verified 0 of" in done.stdout
