"""A proxy on loopback between a client and an object store, that does to requests what networks and stores do.

What lives here: what can go wrong with one request, by HTTP alone; whichever client sent it, it cannot tell. Start
with `Chaos`; which request meets which fault, a function decides.
"""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

FAULTS_OF_WRITES = (
    "lost before",
    "lost after",
    "409 before",
    "409 after",
    "429 before",
    "500 before",
    "500 after",
    "503 before",
    "503 after",
)
"""`before`: it never reaches the store. `after`: it does, and is done; only the answer is another."""
FAULTS_OF_READS = ("lost before", "lost after", "500 before", "503 before", "cut short")
_HANGING_SECONDS_MAX = 30
_BODY = b"<Error><Code>%s</Code><Message>told to</Message></Error>"
_CODES = {
    403: b"AccessDenied",
    409: b"ConditionalRequestConflict",
    429: b"TooManyRequests",
    500: b"InternalError",
    503: b"SlowDown",
}

Decide = Callable[[str, str], str | None]
"""From method and path (with its query) to what goes wrong, None for nothing."""


@dataclass
class Chaos:
    target: str
    decide: Decide = lambda method, path: None
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    chaos: Chaos

    def handle(self) -> None:
        with suppress(ConnectionError):  # whoever asks has stopped waiting, or was killed
            super().handle()

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.chaos.decide(self.command, unquote(self.path))
        self.chaos.seen.append((self.command, unquote(self.path), fault))
        how, _, when = (fault or "").partition(" ")
        if when == "before":
            self._fail(how)
            return
        target = urlsplit(self.chaos.target)
        assert target.hostname is not None
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=20)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, self.path, body, {**headers, "Host": target.netloc})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if when == "after":
            self._fail(how)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command == "HEAD":
            return
        if how == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self._hang_up()
        else:
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any

    def _fail(self, how: str) -> None:
        if how == "hanging":
            self.chaos.ended.wait(_HANGING_SECONDS_MAX)
        if how in ("lost", "hanging"):
            self._hang_up()
            return
        code = _BODY % _CODES[int(how)]
        self.send_response(int(how))
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(code)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(code)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def between(target: str, decide: Decide = lambda method, path: None) -> Iterator[Chaos]:
    chaos = Chaos(target, decide)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"chaos": chaos}))
    server.daemon_threads = True
    chaos.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield chaos
    finally:
        chaos.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
