"""Workspace of the demo: the folder of its tables and its Dagster instance, and a lock that allows one demo at a
time.

The instance uses the `dagster.yaml` of the repository root and is stored in the demo's folder, so that the UI shows
the runs of the demo.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lance_core import AlreadyExists

ROOT_VARIABLE = "LANCE_ASSETS_DEMO"
PROJECT = Path(__file__).parent.parent.parent
"""Root of the repository; for an installed package, a folder that contains none of its files."""

_WITHOUT_PROJECT = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"


@dataclass(frozen=True, slots=True)
class DemoWorkspace:
    """Folder of the demo with the paths inside it."""

    root: Path

    @property
    def table(self) -> Path:
        return self.root / "orders.lance"

    @property
    def cities(self) -> Path:
        return self.root / "cities.lance"

    @property
    def dagster_home(self) -> Path:
        return self.root / "dagster_home"


def demo_workspace() -> DemoWorkspace:
    return DemoWorkspace(Path(os.environ.get(ROOT_VARIABLE) or ".demo").absolute())


def prepare_home(workspace: DemoWorkspace) -> Path:
    """Create DAGSTER_HOME with its configuration, and set the environment variables. An existing configuration is
    kept."""
    home = workspace.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    config, template = home / "dagster.yaml", PROJECT / "dagster.yaml"
    if not config.exists():
        temporary = home / ".dagster.yaml"
        if template.exists():
            shutil.copyfile(template, temporary)
        else:
            temporary.write_text(_WITHOUT_PROJECT)
        os.replace(temporary, config)
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ[ROOT_VARIABLE] = str(workspace.root)
    return home


@contextmanager
def exclusive_lock(workspace: DemoWorkspace) -> Iterator[None]:
    """Lock the folder for this process. A second demo in the folder would mark the runs of the first as failed. A
    process that dies releases the lock."""
    workspace.root.mkdir(parents=True, exist_ok=True)
    with (workspace.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyExists(
                f"a demo is already running in {workspace.root}; wait for it, or set {ROOT_VARIABLE} to another folder"
            ) from error
        yield
