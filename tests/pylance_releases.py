"""Old releases of pylance: a virtual environment for each, below `.tools/pylance/`, created once.

A release cannot be installed next to the one that the project uses, so a program of an old release runs as a process of
its own, with the pyarrow and numpy of its time.
"""

import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".tools" / "pylance"

# Release -> its pyarrow and numpy.
RELEASES = {
    "0.5.0": ("12.0.1", "1.26.4"),
    "0.8.0": ("12.0.1", "1.26.4"),
    "0.10.0": ("14.0.2", "1.26.4"),
    "0.10.5": ("14.0.2", "1.26.4"),
    "0.12.3": ("14.0.2", "1.26.4"),
    "0.15.0": ("16.1.0", "1.26.4"),
    "0.20.0": ("18.1.0", "1.26.4"),
    "0.27.2": ("19.0.1", "2.2.6"),
    "0.30.0": ("20.0.0", "2.2.6"),
    "0.39.0": ("22.0.0", "2.2.6"),
    "1.0.0": ("22.0.0", "2.2.6"),
    "2.0.1": ("22.0.0", "2.2.6"),
    "4.0.0": ("23.0.1", "2.2.6"),
    "8.0.0": ("23.0.1", "2.2.6"),
    "10.0.0": ("23.0.1", "2.2.6"),
    "12.0.0": ("23.0.1", "2.2.6"),
    "13.0.0": ("23.0.1", "2.2.6"),
    "14.0.2": ("23.0.1", "2.2.6"),
}


def install_release(release: str) -> Path:
    """Return the Python interpreter of the environment of a release, which is created on first use."""
    environment = ENVIRONMENTS / release
    python = environment / "bin" / "python"
    done = environment / ".installed"
    if not done.exists():
        print(f"installing pylance {release}", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        pyarrow, numpy = RELEASES[release]
        packages = [f"pylance=={release}", f"pyarrow=={pyarrow}", f"numpy=={numpy}"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python
