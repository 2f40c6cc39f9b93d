"""Fixtures of the UI tests: the demo project after its runs, and Dagster's web server for it, started once and stopped
by its process id."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import playwright.sync_api
import pytest

from lance_assets.demo.workspace import PROJECT, ROOT_VARIABLE, DemoWorkspace
from tests.ui.browser import Browser, open_browser, run_chromium

SECONDS_MAX = 120
PICTURES = Path(os.environ.get("UI_PICTURES") or PROJECT / ".ui")
WORK = """
import dagster as dg, sys
from lance_assets.demo.definitions import cities, defs, orders
from lance_assets.demo.workspace import demo_workspace, prepare_home
with dg.DagsterInstance.from_config(str(prepare_home(demo_workspace()))) as instance:
    def run(*keys, partition=None):
        assets = [defs.get_assets_def(key) for key in keys]
        spark = {"spark": (defs.resources or {})["spark"]}
        done = dg.materialize(assets, instance=instance, resources=spark, partition_key=partition, raise_on_error=False)
        print(*keys, partition, done.success, done.run_id, flush=True)
        return done.success
    assert run(cities.write_key("cities_counted"))
    for version in (1, 2, 3):
        assert run(orders.profile_key, partition=f"v{version:010}")
    assert not run(orders.write_key("orders_delivery"))
"""


@dataclass(frozen=True, slots=True)
class Demo:
    root: Path
    runs: dict[str, str]
    """Run ids by the last part of the asset key."""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    root = tmp_path_factory.mktemp("demo")
    run([sys.executable, "-m", "lance_assets.demo"], root)
    output = run([sys.executable, "-c", WORK], root)
    runs = {}
    for line in output.splitlines():
        if "'" in line and line.count("-") >= 4:
            runs[line.split("'")[1]] = line.split()[-1]
    return Demo(root, runs)


@pytest.fixture(scope="session")
def server(demo: Demo) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", port]
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment(demo.root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="session")
def chromium() -> Iterator[playwright.sync_api.Browser]:
    with run_chromium() as started:
        yield started


@pytest.fixture(scope="session")
def pages(chromium: playwright.sync_api.Browser, server: str) -> Iterator[Browser]:
    with open_browser(chromium, server, PICTURES) as opened:
        yield opened


def environment(root: Path) -> dict[str, str]:
    home = {
        "DAGSTER_HOME": str(DemoWorkspace(root).dagster_home),
        ROOT_VARIABLE: str(root),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    return {**os.environ, **home}


def run(command: list[str], root: Path) -> str:
    done = subprocess.run(command, cwd=PROJECT, env=environment(root), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        assert process.poll() is None, "the web server exited during its start"
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)  # the server offers no readiness event to other processes
    raise AssertionError(f"no answer from {url} within {SECONDS_MAX} s")
