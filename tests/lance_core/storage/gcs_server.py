"""Google Cloud Storage emulator: objects in memory behind the JSON interface, which this library and gcsfs use, and the
XML interface, which the codec uses.

It implements conditions, ranges and listings as the service documents them. With `honours_conditions` false it behaves
like stores that accept a condition and put in any case. Start with `GcsEmulator`.
"""

import json
import re
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

BUCKET = "bucket"
"""Bucket of an emulator that is a process of its own."""
NO_OBJECT = (404, b'{"error": {"code": 404, "message": "No such object: the object does not exist"}}')
PRECONDITION_FAILED = (412, b'{"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}}')
NO_BUCKET = (404, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}')


@dataclass
class StoredObject:
    data: bytes
    generation: int
    updated: datetime


@dataclass
class GcsEmulator:
    buckets: dict[str, dict[str, StoredObject]] = field(default_factory=dict)
    honours_conditions: bool = True
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Parts of multipart uploads, by upload and part number."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _generations: count = field(default_factory=lambda: count(1))

    def put(self, bucket: str, name: str, data: bytes, condition: str | None) -> tuple[int, bytes]:
        with self._lock:
            if bucket not in self.buckets:
                return NO_BUCKET
            existing = self.buckets[bucket].get(name)
            if (
                condition is not None
                and self.honours_conditions
                and int(condition) != (existing.generation if existing else 0)
            ):
                return PRECONDITION_FAILED
            stored = StoredObject(data, next(self._generations), datetime.now(UTC))
            self.buckets[bucket][name] = stored
            return 200, json.dumps(object_resource(name, stored)).encode()

    def get(self, bucket: str, name: str) -> StoredObject | None:
        with self._lock:
            return self.buckets.get(bucket, {}).get(name)

    def delete(self, bucket: str, name: str) -> tuple[int, bytes]:
        with self._lock:
            return (204, b"") if self.buckets.get(bucket, {}).pop(name, None) else NO_OBJECT

    def list_page(
        self, bucket: str, prefix: str, delimiter: str, first_name: str, limit: int
    ) -> tuple[list[tuple[str, StoredObject]], list[str], str]:
        """Return objects, common prefixes, and the first name of the next page."""
        objects: list[tuple[str, StoredObject]] = []
        prefixes: list[str] = []
        with self._lock:
            names = sorted(
                each for each in self.buckets.get(bucket, {}) if each.startswith(prefix) and each >= first_name
            )
            for name in names:
                rest = name[len(prefix) :]
                inside = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
                if inside is not None and inside in prefixes:
                    continue
                if len(objects) + len(prefixes) == limit:
                    return objects, prefixes, name
                if inside is not None:
                    prefixes.append(inside)
                else:
                    objects.append((name, self.buckets[bucket][name]))
        return objects, prefixes, ""


def object_resource(name: str, stored: StoredObject) -> dict[str, str]:
    return {
        "kind": "storage#object",
        "name": name,
        "size": str(len(stored.data)),
        "updated": stored.updated.isoformat().replace("+00:00", "Z"),
        "timeCreated": stored.updated.isoformat().replace("+00:00", "Z"),
        "generation": str(stored.generation),
        "etag": f"generation {stored.generation}",
    }


def requested_fields(resource: dict[str, str], query: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an object that the request asks for, as the service does."""
    wanted = re.search(r"items\(([^)]*)\)|^([\w,]+)$", query.get("fields", ""))
    names = (wanted[1] or wanted[2]).split(",") if wanted else resource
    return {name: resource[name] for name in names}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    gcs: GcsEmulator

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        match url.path.split("/")[1:]:
            case ["storage", "v1", "b", bucket, "o"]:
                self._list_json(unquote(bucket), query)
            case ["storage", "v1", "b", bucket]:
                exists = unquote(bucket) in self.gcs.buckets
                self._answer(*((200, json.dumps({"name": unquote(bucket)}).encode()) if exists else NO_BUCKET))
            case ["storage" | "download", *_, "b", bucket, "o", name]:
                self._get(unquote(bucket), unquote(name), query, data=query.get("alt") == "media")
            case [bucket] | [bucket, ""]:
                self._list_xml(unquote(bucket), query)
            case [bucket, *names]:
                self._get(unquote(bucket), unquote("/".join(names)), query, data=True)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match url.path.split("/")[1:]:
            case ["upload", "storage", "v1", "b", bucket, "o"]:
                name, data = query.get("name", ""), body
                if query["uploadType"] == "multipart":
                    metadata, data = split_multipart(self.headers, body)
                    name = json.loads(metadata)["name"]
                self._answer(*self.gcs.put(unquote(bucket), name, data, query.get("ifGenerationMatch")))
            case ["storage", "v1", "b", source, "o", name, "rewriteTo", "b", target, "o", to]:
                stored = self.gcs.get(unquote(source), unquote(name))
                if stored is None:
                    self._answer(*NO_OBJECT)
                    return
                self.gcs.put(unquote(target), unquote(to), stored.data, None)
                self._answer(200, json.dumps({"done": True}).encode())
            case [bucket, *names]:
                self._upload(unquote(bucket), unquote("/".join(names)), query)

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path)[1:].partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = parse_qs(url.query)
        if "uploadId" in query:
            self.gcs.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._answer(200, b"", {"ETag": '"1"'})
            return
        status, answer = self.gcs.put(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        self._answer(status, b"" if status == 200 else answer, {"ETag": '"1"', "x-goog-generation": "1"})

    def do_DELETE(self) -> None:
        url = urlsplit(self.path)
        if upload := parse_qs(url.query).get("uploadId"):
            self._answer(204 if self.gcs.uploads.pop(upload[0], None) is not None else 404, b"")
            return
        match url.path.split("/")[1:]:
            case ["storage", "v1", "b", bucket, "o", name]:
                self._answer(*self.gcs.delete(unquote(bucket), unquote(name)))
            case [bucket, *names]:
                self._answer(*self.gcs.delete(unquote(bucket), unquote("/".join(names))))

    def _upload(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Start or complete a multipart upload."""
        if "uploads" in query:
            number = f"upload-{uuid.uuid4().hex}"
            self.gcs.uploads[number] = {}
            answer = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, answer.encode())
            return
        if query["uploadId"] not in self.gcs.uploads:
            self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        split_multipart = self.gcs.uploads.pop(query["uploadId"])
        self.gcs.put(bucket, name, b"".join(split_multipart[number] for number in sorted(split_multipart)), None)
        self._answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def _get(self, bucket: str, name: str, query: Mapping[str, str], *, data: bool) -> None:
        stored = self.gcs.get(bucket, name)
        if stored is None:
            self._answer(*NO_OBJECT)
        elif not data:
            self._answer(200, json.dumps(requested_fields(object_resource(name, stored), query)).encode())
        else:
            headers = {
                "ETag": f'"{stored.generation}"',
                "Last-Modified": stored.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            }
            self._answer(*range_response(stored.data, self.headers.get("Range"), headers))

    def _list_json(self, bucket: str, query: Mapping[str, str]) -> None:
        first_name = max(query.get("startOffset", ""), query.get("pageToken", ""))
        limit = int(query.get("maxResults", 1000))
        objects, prefixes, next_name = self.gcs.list_page(
            bucket, query.get("prefix", ""), query.get("delimiter", ""), first_name, limit
        )
        items = [requested_fields(object_resource(*each), query) for each in objects]
        answer: dict[str, object] = {"kind": "storage#objects", "items": items}
        if prefixes:
            answer["prefixes"] = prefixes
        if next_name:
            answer["nextPageToken"] = next_name
        self._answer(*((200, json.dumps(answer).encode()) if bucket in self.gcs.buckets else NO_BUCKET))

    def _list_xml(self, bucket: str, query: Mapping[str, str]) -> None:
        objects, prefixes, _ = self.gcs.list_page(
            bucket, query.get("prefix", ""), query.get("delimiter", ""), "", 10**6
        )
        rows = [
            f"<Contents><Key>{escape(name)}</Key><Size>{len(stored.data)}</Size>"
            f"<LastModified>{stored.updated.isoformat()}</LastModified><ETag>x</ETag></Contents>"
            for name, stored in objects
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
        """Log nothing."""


def range_response(data: bytes, byte_range: str | None, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    if byte_range is None:
        return 200, data, headers
    first, _, last = byte_range.removeprefix("bytes=").partition("-")
    if first == "":
        start, end = max(0, len(data) - int(last)), len(data)
    else:
        start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
    if start >= len(data):
        return 416, b"", {"Content-Range": f"bytes */{len(data)}"}
    return 206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}


def split_multipart(headers: Message, body: bytes) -> tuple[bytes, bytes]:
    """Return the metadata and the data of a multipart/related body, whose lines end as the client chose."""
    boundary = b"--" + headers.get_param("boundary").strip("'\"").encode()  # type: ignore[union-attr]
    metadata, data = body.split(boundary)[1:3]
    line_end = b"\r\n" if metadata.startswith(b"\r\n") else b"\n"
    metadata, data = (part.partition(2 * line_end)[2] for part in (metadata, data))
    return metadata.strip(), data.removesuffix(line_end)


def create_server(gcs: GcsEmulator) -> ThreadingHTTPServer:
    """Return a server that listens; it answers once `serve_forever` runs."""
    return ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"gcs": gcs}))


if __name__ == "__main__":
    server = create_server(GcsEmulator({BUCKET: {}}))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
