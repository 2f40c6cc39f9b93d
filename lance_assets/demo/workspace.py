"""Where the demo keeps its things: the table, the Dagster instance, the lock of the one demo that may run there.

The instance is the one that `dagster.yaml` at the top of the project describes, kept in the demo's folder, so that the
runs of the demo are there when the UI is opened.
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
"""The top of the project; of an installed package a folder in which none of its files are."""

_WITHOUT_PROJECT = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"


@dataclass(frozen=True, slots=True)
class DemoWorkspace:
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


def prepare_home(where: DemoWorkspace) -> Path:
    """DAGSTER_HOME, with its configuration in it; one that is there stays."""
    home = where.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    config, shipped = home / "dagster.yaml", PROJECT / "dagster.yaml"
    if not config.exists():
        fresh = home / ".dagster.yaml"
        if shipped.exists():
            shutil.copyfile(shipped, fresh)
        else:
            fresh.write_text(_WITHOUT_PROJECT)
        os.replace(fresh, config)
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ[ROOT_VARIABLE] = str(where.root)
    return home


@contextmanager
def exclusive_lock(where: DemoWorkspace) -> Iterator[None]:
    """Two demos at once in one folder would take each other's runs for dead. The lock goes with its process."""
    where.root.mkdir(parents=True, exist_ok=True)
    with (where.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyExists(
                f"a demo is running in {where.root} already; wait for it, or set {ROOT_VARIABLE} to another folder"
            ) from error
        yield
