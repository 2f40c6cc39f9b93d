"""Faulty proxy: an HTTP proxy on loopback between a client and an object store that injects the faults of networks and
stores.

The module contains the faults of a single HTTP request; a client cannot tell them from real ones. A function chooses
the fault of each request. Start with `FaultyProxy`.
"""

import http.client
import itertools
import random
import socket
import threading
import time
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
"""`before`: the request does not reach the store. `after`: the store executes it, but the client gets another answer.
"""
FAULTS_OF_READS = ("lost before", "lost after", "500 before", "503 before", "cut short")
_HANGING_SECONDS_MAX = 30
_BODY = b"<Error><Code>%s</Code><Message>injected</Message></Error>"
FAULT_CODES = {
    403: b"AccessDenied",
    409: b"ConditionalRequestConflict",
    429: b"TooManyRequests",
    500: b"InternalError",
    503: b"SlowDown",
}

FaultChooser = Callable[[str, str], str | None]
"""Returns the fault for the method and the path (with its query) of a request, or None."""
_REQUESTS_PER_BURST, _BURST, _RESETS = 50, 5, 0.05


def throttling(seed: int) -> FaultChooser:
    """Return the decision of a store at its limits: of each 50 requests 5 in a row get 503 SlowDown, and 5 % of the
    others lose their connection before the store executes them."""
    generator = random.Random(seed)
    numbers = itertools.count(generator.randrange(_REQUESTS_PER_BURST))

    def choose(method: str, path: str) -> str | None:
        if next(numbers) % _REQUESTS_PER_BURST >= _REQUESTS_PER_BURST - _BURST:
            return "503 before"
        return "lost before" if generator.random() < _RESETS else None

    return choose


@dataclass
class FaultyProxy:
    target: str
    choose_fault: FaultChooser = lambda method, path: None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""
    clock_offset: float = 0
    """Seconds that are added to the dates of answers."""
    has_ended: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has stopped waiting or was killed
            super().handle()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.proxy.clock_offset)

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.choose_fault(self.command, unquote(self.path))
        self.proxy.requests.append((self.command, unquote(self.path), fault))
        effect, _, moment = (fault or "").partition(" ")
        if moment == "before":
            self._fail(effect)
            return
        target = urlsplit(self.proxy.target)
        assert target.hostname is not None
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=20)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, self.path, body, {**headers, "Host": target.netloc})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if moment == "after":
            self._fail(effect)
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
        if effect == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self._hang_up()
        else:
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any

    def _fail(self, effect: str) -> None:
        if effect == "hanging":
            self.proxy.has_ended.wait(_HANGING_SECONDS_MAX)
        if effect in ("lost", "hanging"):
            self._hang_up()
            return
        code = _BODY % FAULT_CODES[int(effect)]
        self.send_response(int(effect))
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(code)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(code)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def proxy_to(target: str, decide: FaultChooser = lambda method, path: None) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(target, decide)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"proxy": proxy}))
    server.daemon_threads = True
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.has_ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
