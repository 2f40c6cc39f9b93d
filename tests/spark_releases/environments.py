"""Spark environments: a virtual environment for each supported release of Spark, below `.tools/spark/`.

An environment holds PySpark alone; everything else comes from the environment of the project, whose site-packages it
searches last.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".tools" / "spark"
RELEASES = ("3.5", "4.0", "4.1", "4.2", "4.3")


def install_release(release: str) -> Path:
    """Return the Python interpreter of the environment of a release, which is created on first use."""
    environment = ENVIRONMENTS / release
    python = environment / "bin" / "python"
    done = environment / ".installed"
    if not done.exists():
        print(f"installing PySpark {release}", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"pyspark=={release}.*"], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        path_file = environment / "lib" / version / "site-packages" / "project.pth"
        path_file.write_text(sysconfig.get_path("purelib") + "\n")
        done.touch()
    return python
