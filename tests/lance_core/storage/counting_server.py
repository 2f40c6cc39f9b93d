"""Counting server: an HTTP server on loopback that waits before each answer, counts requests and injects faults.

A subclass executes the requests: `s3_emulator.py` on objects in memory, `latency_proxy.py` by another server. Requests
below `/-/` control the server. It takes a fraction of a millisecond of processor time for a request, so that many
concurrent requests do not measure the server. `counting_process.py` runs one in a process of its own.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from tests.lance_core.storage.faulty_proxy import FAULT_CODES, FaultChooser, throttling
from tests.lance_core.storage.request_counts import Transfer, kind_of

CONTROL = "/-/"
Arguments = Mapping[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Statistics:
    """Requests since the last reset."""

    kinds: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    in_flight: int = 0
    in_flight_max: int = 0

    def add(self, transfer: Transfer) -> None:
        kind = kind_of(transfer)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.bytes_read += transfer.received
        self.bytes_written += transfer.sent


@dataclass
class CountingServer(ABC):
    latency: float = 0
    """Seconds before each answer."""
    statistics: Statistics = field(default_factory=Statistics)
    choose_fault: FaultChooser = lambda method, path: None

    @abstractmethod
    async def execute(self, request: web.BaseRequest, body: bytes) -> Answer:
        """Execute a request."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body, is_head = await request.content.read(), request.method == "HEAD"
        if request.path.startswith(CONTROL):
            return web.json_response(self.control(request.path.removeprefix(CONTROL), json.loads(body)))
        self.statistics.in_flight += 1
        self.statistics.in_flight_max = max(self.statistics.in_flight, self.statistics.in_flight_max)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.statistics.in_flight -= 1
        effect, _, moment = (self.choose_fault(request.method, request.path_qs) or "").partition(" ")
        answer = await self.execute(request, body) if moment != "before" else Answer()
        received = 0 if is_head else len(answer.body)
        self.statistics.add(Transfer(request.method, request.path_qs, len(body), received))
        if effect == "lost":
            assert request.transport is not None
            request.transport.abort()
        elif effect:
            answer = error_answer(int(effect), FAULT_CODES[int(effect)].decode())
        return web.Response(status=answer.status, body=None if is_head else answer.body, headers=answer.headers)

    def control(self, command: str, arguments: Arguments) -> object:
        """Execute a control request, and return what it answers as JSON."""
        if command == "settings":
            self.latency = float(arguments["latency"])
            self.choose_fault = (
                throttling(int(arguments["throttling"])) if arguments["throttling"] else lambda method, path: None
            )
            return None
        assert command == "take_statistics", command
        taken, self.statistics = self.statistics, Statistics()
        return {
            "kinds": taken.kinds,
            "bytes_read": taken.bytes_read,
            "bytes_written": taken.bytes_written,
            "in_flight_max": taken.in_flight_max,
        }


def error_answer(status: int, code: str) -> Answer:
    """Return an error as S3 words it."""
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


async def serve(server: CountingServer) -> None:
    """Print the address of the server, and answer until the process ends."""
    runner = web.ServerRunner(web.Server(server.handle), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=512)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()
