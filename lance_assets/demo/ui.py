"""Dagster's web UI over the demo's instance, on a free port of this machine alone."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

from lance_assets.demo.workspace import PROJECT, DemoWorkspace, prepare_home

HOST = "127.0.0.1"
_STOP_SECONDS_MAX = 30
_POLL_SECONDS = 0.3


def serve(where: DemoWorkspace, show: Callable[[str], None]) -> int:
    """Runs until it is told to stop; answers the exit code."""
    prepare_home(where)
    url = f"http://{HOST}:{free_port()}"
    show(f"Starting Dagster's web UI at {url} (stop it with Ctrl-C)")
    if not where.table.exists():
        show("The table is not there yet: run make demo, or launch the job load_orders in the UI.")
    workspace = PROJECT / "workspace.yaml"
    target = ["-w", str(workspace)] if workspace.exists() else ["-m", "lance_assets.demo.definitions"]
    command = [sys.executable, "-m", "dagster", "dev", *target, "-h", HOST, "-p", url.rpartition(":")[2]]
    stopper = Stopper()
    # A session of its own: what a terminal sends on Ctrl-C reaches it once, through us.
    stopper.child = subprocess.Popen(
        command, cwd=PROJECT, env=without_telemetry(os.environ), start_new_session=True, stdin=subprocess.DEVNULL
    )
    if _wait_until_ready(url, stopper):
        show(f"Dagster's web UI is ready: {url}")
    return stopper.wait()


class Stopper:
    """Hands the first signal to stop on to the child, and ends it at the second, or when it takes too long."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def wait(self) -> int:
        assert self.child is not None
        while (code := self.child.poll()) is None:
            if self.stopped_at is not None and time.monotonic() - self.stopped_at > _STOP_SECONDS_MAX:
                self._kill()
            time.sleep(_POLL_SECONDS)
        self._stop_remaining_processes()
        return 0 if self.stopped_at is not None else code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.child is None:
            raise SystemExit(0)
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self.child.send_signal(number)
        else:
            self._kill()

    def _stop_remaining_processes(self) -> None:
        """Code servers outlive Dagster for a while, and would hold on to the demo's folder."""
        assert self.child is not None
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)

    def _kill(self) -> None:
        assert self.child is not None
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def without_telemetry(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "DAGSTER_DISABLE_TELEMETRY": "yes"}


def _wait_until_ready(url: str, stopper: Stopper) -> bool:
    assert stopper.child is not None
    while stopper.child.poll() is None and stopper.stopped_at is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(_POLL_SECONDS)
    return False
