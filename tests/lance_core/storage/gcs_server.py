"""Google Cloud Storage, as much of it as is asked here: objects in memory, by the JSON interface, which our store and
gcsfs speak, and by the XML interface, which the codec speaks.

What lives here: what the service promises of conditions, ranges and listings. With `honours_conditions` false it is
one of those that parse a condition and put all the same. Start with `Gcs`.
"""

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ABSENT = (404, b'{"error": {"code": 404, "message": "No such object: it is not there"}}')
ALREADY = (412, b'{"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}}')
NO_BUCKET = (404, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}')


@dataclass
class Stored:
    data: bytes
    generation: int
    updated: datetime


@dataclass
class Gcs:
    buckets: dict[str, dict[str, Stored]] = field(default_factory=dict)
    honours_conditions: bool = True
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Parts of large objects, by upload and number."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _generations: count = field(default_factory=lambda: count(1))

    def put(self, bucket: str, name: str, data: bytes, condition: str | None) -> tuple[int, bytes]:
        with self._lock:
            if bucket not in self.buckets:
                return NO_BUCKET
            there = self.buckets[bucket].get(name)
            if (
                condition is not None
                and self.honours_conditions
                and int(condition) != (there.generation if there else 0)
            ):
                return ALREADY
            stored = Stored(data, next(self._generations), datetime.now(UTC))
            self.buckets[bucket][name] = stored
            return 200, json.dumps(told(name, stored)).encode()

    def get(self, bucket: str, name: str) -> Stored | None:
        with self._lock:
            return self.buckets.get(bucket, {}).get(name)

    def delete(self, bucket: str, name: str) -> tuple[int, bytes]:
        with self._lock:
            return (204, b"") if self.buckets.get(bucket, {}).pop(name, None) else ABSENT

    def page(
        self, bucket: str, prefix: str, delimiter: str, begin: str, most: int
    ) -> tuple[list[tuple[str, Stored]], list[str], str]:
        """Objects, common beginnings, and the name that the next page begins with."""
        found: list[tuple[str, Stored]] = []
        prefixes: list[str] = []
        with self._lock:
            names = sorted(each for each in self.buckets.get(bucket, {}) if each.startswith(prefix) and each >= begin)
            for name in names:
                rest = name[len(prefix) :]
                inside = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
                if inside is not None and inside in prefixes:
                    continue
                if len(found) + len(prefixes) == most:
                    return found, prefixes, name
                if inside is not None:
                    prefixes.append(inside)
                else:
                    found.append((name, self.buckets[bucket][name]))
        return found, prefixes, ""


def told(name: str, stored: Stored) -> dict[str, str]:
    return {
        "kind": "storage#object",
        "name": name,
        "size": str(len(stored.data)),
        "updated": stored.updated.isoformat().replace("+00:00", "Z"),
        "timeCreated": stored.updated.isoformat().replace("+00:00", "Z"),
        "generation": str(stored.generation),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    gcs: Gcs

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        match place.path.split("/")[1:]:
            case ["storage", "v1", "b", bucket, "o"]:
                self._list_json(unquote(bucket), asked)
            case ["storage" | "download", *_, "b", bucket, "o", name]:
                self._get(unquote(bucket), unquote(name), data=asked.get("alt") == "media")
            case [bucket] | [bucket, ""]:
                self._list_xml(unquote(bucket), asked)
            case [bucket, *names]:
                self._get(unquote(bucket), unquote("/".join(names)), data=True)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        place = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match place.path.split("/")[1:]:
            case ["upload", "storage", "v1", "b", bucket, "o"]:
                name, data = asked.get("name", ""), body
                if asked["uploadType"] == "multipart":
                    about, data = parts(self.headers, body)
                    name = json.loads(about)["name"]
                self._answer(*self.gcs.put(unquote(bucket), name, data, asked.get("ifGenerationMatch")))
            case ["storage", "v1", "b", source, "o", name, "rewriteTo", "b", target, "o", to]:
                stored = self.gcs.get(unquote(source), unquote(name))
                if stored is None:
                    self._answer(*ABSENT)
                    return
                self.gcs.put(unquote(target), unquote(to), stored.data, None)
                self._answer(200, json.dumps({"done": True}).encode())
            case [bucket, *names]:
                self._upload(unquote(bucket), unquote("/".join(names)), asked)

    def do_PUT(self) -> None:
        place = urlsplit(self.path)
        bucket, _, name = unquote(place.path)[1:].partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = parse_qs(place.query)
        if "uploadId" in asked:
            self.gcs.uploads[asked["uploadId"][0]][int(asked["partNumber"][0])] = body
            self._answer(200, b"", {"ETag": '"1"'})
            return
        status, answer = self.gcs.put(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        self._answer(status, b"" if status == 200 else answer, {"ETag": '"1"', "x-goog-generation": "1"})

    def do_DELETE(self) -> None:
        match urlsplit(self.path).path.split("/")[1:]:
            case ["storage", "v1", "b", bucket, "o", name]:
                self._answer(*self.gcs.delete(unquote(bucket), unquote(name)))
            case [bucket, *names]:
                self._answer(*self.gcs.delete(unquote(bucket), unquote("/".join(names))))

    def _upload(self, bucket: str, name: str, asked: Mapping[str, str]) -> None:
        """Its beginning, or its end."""
        if "uploads" in asked:
            number = f"upload-{uuid.uuid4().hex}"
            self.gcs.uploads[number] = {}
            answer = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, answer.encode())
            return
        parts = self.gcs.uploads.pop(asked["uploadId"])
        self.gcs.put(bucket, name, b"".join(parts[number] for number in sorted(parts)), None)
        self._answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def _get(self, bucket: str, name: str, *, data: bool) -> None:
        stored = self.gcs.get(bucket, name)
        if stored is None:
            self._answer(*ABSENT)
        elif not data:
            self._answer(200, json.dumps(told(name, stored)).encode())
        else:
            about = {
                "ETag": f'"{stored.generation}"',
                "Last-Modified": stored.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            }
            self._answer(*ranged(stored.data, self.headers.get("Range"), about))

    def _list_json(self, bucket: str, asked: Mapping[str, str]) -> None:
        begin = max(asked.get("startOffset", ""), asked.get("pageToken", ""))
        most = int(asked.get("maxResults", 1000))
        found, prefixes, following = self.gcs.page(
            bucket, asked.get("prefix", ""), asked.get("delimiter", ""), begin, most
        )
        answer: dict[str, object] = {"kind": "storage#objects", "items": [told(*each) for each in found]}
        if prefixes:
            answer["prefixes"] = prefixes
        if following:
            answer["nextPageToken"] = following
        self._answer(*((200, json.dumps(answer).encode()) if bucket in self.gcs.buckets else NO_BUCKET))

    def _list_xml(self, bucket: str, asked: Mapping[str, str]) -> None:
        found, prefixes, _ = self.gcs.page(bucket, asked.get("prefix", ""), asked.get("delimiter", ""), "", 10**6)
        rows = [
            f"<Contents><Key>{escape(name)}</Key><Size>{len(stored.data)}</Size>"
            f"<LastModified>{stored.updated.isoformat()}</LastModified><ETag>x</ETag></Contents>"
            for name, stored in found
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes]
        self._answer(200, f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def ranged(data: bytes, asked: str | None, about: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    if asked is None:
        return 200, data, about
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if first == "":
        start, end = max(0, len(data) - int(last)), len(data)
    else:
        start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
    if start >= len(data):
        return 416, b"", {"Content-Range": f"bytes */{len(data)}"}
    return 206, data[start:end], {**about, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}


def parts(headers: Message, body: bytes) -> tuple[bytes, bytes]:
    """Of a multipart/related body: what is said of the object, and the object."""
    boundary = b"--" + headers.get_param("boundary").strip("'\"").encode()  # type: ignore[union-attr]
    about, data = body.split(boundary)[1:3]
    return about.partition(b"\n\n")[2].strip(), data.partition(b"\n\n")[2].removesuffix(b"\n")


def serve(gcs: Gcs) -> ThreadingHTTPServer:
    """Listening; it answers once `serve_forever` runs."""
    return ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"gcs": gcs}))
