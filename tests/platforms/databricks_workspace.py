"""Databricks workspace emulator: runs submitted Python files as local processes, and keeps volumes in a directory.

It answers the requests of the Jobs API and of the Files API that `PipesDatabricksServerlessClient` sends. Volumes have
the paths of local files, so that a process opens them as it would on a cluster. Start with `open_workspace`.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Workspace:
    volumes: Path
    environment: Mapping[str, str]
    """Variables of the processes."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Submitted tasks, oldest first."""
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    host: str = ""

    def submit(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        (task,) = request["tasks"]
        self.tasks.append(task)
        script = task["spark_python_task"]
        command = [sys.executable, script["python_file"], *script.get("parameters", [])]
        self.processes.append(subprocess.Popen(command, env=dict(self.environment)))
        return {"run_id": len(self.processes)}

    def run(self, run_id: int) -> Mapping[str, Any]:
        code = self.processes[run_id - 1].poll()
        state = {"life_cycle_state": "RUNNING"}
        if code is not None:
            state = {"life_cycle_state": "TERMINATED", "result_state": "FAILED" if code else "SUCCESS"}
        return {"run_id": run_id, "state": state}

    def local_path(self, url_path: str) -> Path:
        """Return the file or directory of a request, which must be inside the volumes."""
        _api, _, name = unquote(url_path.partition("/fs/")[2]).partition("/")
        path = Path("/", name).resolve()
        assert path.is_relative_to(self.volumes), path
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    workspace: Workspace

    def do_POST(self) -> None:
        self._answer(200, self.workspace.submit(json.loads(self._body())))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.endswith("/jobs/runs/get"):
            self._answer(200, self.workspace.run(int(parse_qs(url.query)["run_id"][0])))
            return
        if "/fs/" not in url.path:
            self._answer(404, {"error_code": "NOT_FOUND", "message": "unknown endpoint"})
            return
        path = self.workspace.local_path(url.path)
        if not path.exists():
            self._answer(404, {"error_code": "NOT_FOUND", "message": f"{path} does not exist"})
        elif path.is_dir():
            contents = [
                {"path": str(each), "name": each.name, "is_directory": each.is_dir()} for each in path.iterdir()
            ]
            self._answer(200, {"contents": contents})
        else:
            self._answer(200, path.read_bytes())

    def do_PUT(self) -> None:
        path, body = self.workspace.local_path(urlsplit(self.path).path), self._body()
        if "/fs/directories/" in self.path:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(body)
        self._answer(204, b"")

    def do_DELETE(self) -> None:
        path = self.workspace.local_path(urlsplit(self.path).path)
        path.rmdir() if path.is_dir() else path.unlink()
        self._answer(204, b"")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, content: Mapping[str, Any] | bytes) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json"
        )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def open_workspace(volumes: Path, environment: Mapping[str, str]) -> Iterator[Workspace]:
    """Serve a workspace whose processes end with the block."""
    workspace = Workspace(volumes.resolve(), environment)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"workspace": workspace}))
    workspace.host = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield workspace
    finally:
        server.shutdown()
        server.server_close()
        for process in workspace.processes:
            process.kill()
            process.wait()
