"""Demo UI: starts Dagster's web UI for the demo's instance, on a free port of the loopback interface."""

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


def serve(workspace: DemoWorkspace, show: Callable[[str], None]) -> int:
    """Run the UI until a signal stops it, and return the exit code."""
    prepare_home(workspace)
    url = f"http://{HOST}:{free_port()}"
    show(f"Starting Dagster's web UI at {url} (stop it with Ctrl-C)")
    if not workspace.table.exists():
        show("The table does not exist yet: run make demo, or launch the job load_orders in the UI.")
    workspace_file = PROJECT / "workspace.yaml"
    target = ["-w", str(workspace_file)] if workspace_file.exists() else ["-m", "lance_assets.demo.definitions"]
    command = [sys.executable, "-m", "dagster", "dev", *target, "-h", HOST, "-p", url.rpartition(":")[2]]
    stopper = Stopper()
    # The child gets a session of its own, so that Ctrl-C reaches it only once, through `Stopper`.
    stopper.child = subprocess.Popen(
        command, cwd=PROJECT, env=without_telemetry(os.environ), start_new_session=True, stdin=subprocess.DEVNULL
    )
    if _wait_until_ready(url, stopper):
        show(f"Dagster's web UI is ready: {url}")
    return stopper.wait()


class Stopper:
    """Signal handler that forwards the first stop signal to the child, and kills the child at the second one or after
    a timeout."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.stop_requested_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def wait(self) -> int:
        assert self.child is not None
        while (code := self.child.poll()) is None:
            if self.stop_requested_at is not None and time.monotonic() - self.stop_requested_at > _STOP_SECONDS_MAX:
                self._kill()
            time.sleep(_POLL_SECONDS)
        self._stop_remaining_processes()
        return 0 if self.stop_requested_at is not None else code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.child is None:
            raise SystemExit(0)
        if self.stop_requested_at is None:
            self.stop_requested_at = time.monotonic()
            self.child.send_signal(number)
        else:
            self._kill()

    def _stop_remaining_processes(self) -> None:
        """Stop code servers, which outlive Dagster for a while and keep files of the demo's folder open."""
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
    while stopper.child.poll() is None and stopper.stop_requested_at is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(_POLL_SECONDS)
    return False
