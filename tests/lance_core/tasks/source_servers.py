"""Source servers: a directory served by HTTP, and by SFTP also for writing, on loopback, for tests of fsspec."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED
from paramiko.sftp import SFTP_OK

USER, PASSWORD = "reader", "not-a-password-but-looked-for"


@dataclass
class WebServer:
    """Web server of a directory. It lists directories as pages with links, and optionally serves ranges."""

    directory: Path
    has_ranges: bool = True
    status: int | None = None
    """Status of every answer, if the server is to fail."""
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path and number of bytes sent."""
    uri: str = ""


class _WebHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: WebServer

    def do_HEAD(self) -> None:
        self._answer(sends_body=False)

    def do_GET(self) -> None:
        self._answer(sends_body=True)

    def _answer(self, *, sends_body: bool) -> None:
        state = self.server_state
        path = state.directory / unquote(urlsplit(self.path).path).lstrip("/")
        status, headers, body = 200, {"Content-Type": "application/octet-stream"}, b""
        if state.status is not None or not path.exists():
            status = state.status or 404
        elif path.is_dir():
            names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir())
            headers = {"Content-Type": "text/html"}
            body = "".join(f'<a href="{name}">{name}</a>\n' for name in ("?C=N;O=D", "../", *names)).encode()
        else:
            body = path.read_bytes()
            headers["Last-Modified"] = formatdate(path.stat().st_mtime, usegmt=True)
            headers["ETag"] = f'"{path.stat().st_mtime_ns:x}"'
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted and state.has_ranges:
                first, last = int(wanted[1]), int(wanted[2] or len(body) - 1)
                status, headers["Content-Range"] = 206, f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}"
                body = body[first : last + 1]
        state.requests.append((self.command, unquote(self.path), len(body) if sends_body else 0))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if sends_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def web_server(directory: Path, *, has_ranges: bool = True) -> Iterator[WebServer]:
    state = WebServer(directory, has_ranges)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_WebHandler,), {"server_state": state}))
    server.daemon_threads = True
    state.uri = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Login(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        accepted = (username, password) == (USER, PASSWORD)
        return AUTH_SUCCESSFUL if accepted else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED


class _SftpFile(paramiko.SFTPHandle):
    def __init__(self, flags: int, file: BinaryIO) -> None:
        super().__init__(flags)
        self.readfile = self.writefile = file  # which the base class uses


class _SftpDirectory(paramiko.SFTPServerInterface):
    directory: Path

    def list_folder(self, path: str) -> "list[paramiko.SFTPAttributes] | int":
        try:
            return [
                paramiko.SFTPAttributes.from_stat(entry.stat(), filename=entry.name)
                for entry in os.scandir(self._local(path))
            ]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def stat(self, path: str) -> "paramiko.SFTPAttributes | int":
        try:
            return paramiko.SFTPAttributes.from_stat(self._local(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    lstat = stat

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> "paramiko.SFTPHandle | int":
        try:
            file = self._local(path).open("wb" if flags & os.O_WRONLY else "rb")
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return _SftpFile(flags, file)

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        self._local(path).mkdir()
        return SFTP_OK

    def remove(self, path: str) -> int:
        self._local(path).unlink()
        return SFTP_OK

    def _local(self, path: str) -> Path:
        return self.directory / path.lstrip("/")


@contextmanager
def sftp_server(directory: Path) -> Iterator[str]:
    """Serve a directory; yield the URI of its root."""
    key = paramiko.ECDSAKey.generate()
    interface = type("Directory", (_SftpDirectory,), {"directory": directory})
    transports: list[paramiko.Transport] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, interface)
            transport.start_server(server=_Login())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"sftp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for transport in transports:
            transport.close()
