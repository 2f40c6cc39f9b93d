"""Latency proxy: a counting server between a client and the emulator of an object store.

    python -m tests.lance_core.storage.latency_proxy http://127.0.0.1:PORT

It prints its own address. Clients that sign their requests must reach it under the path of the emulator.
"""

import argparse
import asyncio
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.lance_core.storage.counting_server import Answer, CountingServer, serve

_OF_ONE_CONNECTION = ("connection", "date", "keep-alive", "server", "transfer-encoding")
"""Headers that describe a connection or a server, so that they are not passed on."""


@dataclass
class LatencyProxy(CountingServer):
    target: str = ""
    _session: aiohttp.ClientSession | None = None

    async def execute(self, request: web.BaseRequest, body: bytes) -> Answer:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() != "connection")
        url = URL(self.target + request.raw_path, encoded=True)
        async with self._session.request(
            request.method,
            url,
            data=body or None,
            headers=headers,
            skip_auto_headers=("Content-Type", "User-Agent"),
            allow_redirects=False,
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
            return Answer(answer.status, await answer.read(), kept)


def main() -> None:
    parser = argparse.ArgumentParser(description="HTTP proxy that waits and counts; prints its address.")
    parser.add_argument("target", help="address of the server that executes the requests, without a path")
    asyncio.run(serve(LatencyProxy(target=parser.parse_args().target)))


if __name__ == "__main__":
    main()
