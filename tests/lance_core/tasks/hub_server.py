"""Hub server: the files of a directory as a dataset of Hugging Face, for tests of `hf://` on loopback."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATASET = "me/texts"


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory: Path

    def do_GET(self) -> None:
        api = f"/api/datasets/{DATASET}"
        path = unquote(urlsplit(self.path).path)
        if path in (api, f"{api}/revision/main"):
            self._answer_json({"_id": "1", "id": DATASET, "tags": [], "downloads": 0, "likes": 0, "private": False})
        elif path.startswith(f"{api}/tree/main"):
            self._list(self.directory / path.removeprefix(f"{api}/tree/main").strip("/"))
        else:
            self._send_file(self.directory / path.removeprefix(f"/datasets/{DATASET}/resolve/main/"))

    do_HEAD = do_GET

    def _list(self, directory: Path) -> None:
        if not directory.is_dir():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer_json([self._entry(each) for each in sorted(directory.iterdir())])

    def _entry(self, path: Path) -> dict[str, object]:
        name = path.relative_to(self.directory).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0", "size": 0}
        content = path.read_bytes()
        return {"type": "file", "path": name, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}

    def _send_file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        body = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            self._answer(200, body, {})
            return
        first, last = int(wanted[1]), int(wanted[2] or len(body) - 1)
        content_range = f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}"
        self._answer(206, body[first : last + 1], {"Content-Range": content_range})

    def _answer_json(self, content: object) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def hub_server(directory: Path) -> Iterator[str]:
    """Serve the directory as the dataset `DATASET`, and yield the address of the hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_HubHandler,), {"directory": directory}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
