"""S3 emulator with latency: objects in memory behind a counting server, in a process of its own.

It has the requests that tables send: objects, ranges, conditions, listings, copies, deletions of many objects and
uploads in parts. It executes one request at a time, so that one of two concurrent conditional puts succeeds.
`s3_process.py` starts it.
"""

import argparse
import asyncio
import hashlib
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from pathlib import Path
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from tests.lance_core.storage.counting_server import Answer, Arguments, CountingServer, error_answer, serve

BUCKET = "bucket"
"""Bucket that always exists."""
_PAGE_KEYS_MAX = 1_000
_STATUS = {"NoSuchKey": 404, "NoSuchUpload": 404, "NoSuchBucket": 404, "PreconditionFailed": 412, "InvalidRange": 416}
_NAMESPACE = re.compile(rb' xmlns="[^"]*"')


@dataclass(frozen=True, slots=True)
class StoredObject:
    data: bytes
    modified: datetime
    etag: str

    @classmethod
    def of(cls, data: bytes, age: timedelta = timedelta(0)) -> "StoredObject":
        return cls(data, datetime.now(UTC) - age, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')


class S3Error(Exception):
    """Answer of S3 with an error code."""


@dataclass(slots=True)
class Upload:
    """Multipart upload of an object under its name."""

    name: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class S3Emulator:
    """All buckets; names of objects begin with that of their bucket."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Sorted names of all objects."""
    uploads: dict[str, "Upload"] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=lambda: {BUCKET})
    _upload_ids: count = field(default_factory=lambda: count(1))

    def answer(
        self, method: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Execute one request on the object or the bucket `name`."""
        bucket, separator, _ = name.partition("/")
        if not name and method == "GET":
            return self._list_buckets()
        if method == "PUT" and not separator:
            self.buckets.add(bucket)
            return Answer()
        if bucket not in self.buckets:
            raise S3Error("NoSuchBucket")
        if method == "GET" and "uploads" in query:
            return self._list_uploads(bucket)
        if method in ("GET", "HEAD"):
            is_listing = "list-type" in query or (method == "GET" and "prefix" in query)
            return self._list(name.rstrip("/"), query) if is_listing else self._get(method, name, headers)
        if method == "PUT":
            return self._put(name, query, headers, body)
        if method == "DELETE":
            if "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
            else:
                self.remove(name)
            return Answer(204)
        return self._post(name, query, headers, body)

    def store(self, name: str, stored: StoredObject) -> None:
        if name not in self.objects:
            insort(self.names, name)
        self.objects[name] = stored

    def remove(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            del self.names[bisect_left(self.names, name)]

    def load(self, directory: Path, prefix: str, age: timedelta) -> int:
        """Store the files of a directory."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(directory)}"] = StoredObject.of(path.read_bytes(), age)
        self.names = sorted(self.objects)
        return len(self.names)

    def remove_tree(self, prefix: str) -> None:
        self.objects = {name: stored for name, stored in self.objects.items() if not name.startswith(f"{prefix}/")}
        self.names = sorted(self.objects)

    def _get(self, method: str, name: str, headers: Mapping[str, str]) -> Answer:
        stored = self._existing(name)
        described = {"ETag": stored.etag, "Last-Modified": format_datetime(stored.modified, usegmt=True)}
        described |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        size, requested = len(stored.data), headers.get("Range")
        if requested is None:
            return Answer(200, stored.data, described | {"Content-Length": str(size)})
        first, _, last = requested.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if start >= size:
            raise S3Error("InvalidRange")
        described |= {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
        return Answer(206, stored.data[start:end], described)

    def _put(self, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        source = headers.get("x-amz-copy-source")
        if source is not None:
            body = self._existing(unquote(source).lstrip("/")).data
        if "uploadId" in query:
            self._parts(query)[int(query["partNumber"])] = body
            return Answer(headers={"ETag": StoredObject.of(body).etag})
        self._check_conditions(name, headers)
        stored = StoredObject.of(body)
        self.store(name, stored)
        if source is None:
            return Answer(headers={"ETag": stored.etag})
        modified = stored.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return _xml(
            f"<CopyObjectResult><ETag>{stored.etag}</ETag><LastModified>{modified}</LastModified></CopyObjectResult>"
        )

    def _post(self, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        bucket, _, key = name.partition("/")
        if "delete" in query:
            keys = [each.text or "" for each in _parse(body).iter("Key")]
            for each in keys:
                self.remove(f"{bucket}/{each}")
            deleted = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        result = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        if "uploads" in query:
            upload = str(next(self._upload_ids))
            self.uploads[upload] = Upload(name)
            result += f"<UploadId>{upload}</UploadId>"
            return _xml(f"<InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>")
        parts = self._parts(query)
        self._check_conditions(name, headers)
        numbers = [int(each.text or "0") for each in _parse(body).iter("PartNumber")]
        stored = StoredObject.of(b"".join(parts[number] for number in numbers))
        self.store(name, stored)
        del self.uploads[query["uploadId"]]
        result += f"<ETag>{stored.etag}</ETag>"
        return _xml(f"<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>")

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = f"{bucket}/{query.get('prefix', '')}", query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        limit = min(int(query.get("max-keys", _PAGE_KEYS_MAX)), _PAGE_KEYS_MAX)
        position = max(bisect_left(self.names, prefix), bisect_right(self.names, f"{bucket}/{after}") if after else 0)
        encode = quote if query.get("encoding-type") == "url" else escape
        contents: list[str] = []
        directories: list[str] = []
        last, is_truncated = "", False
        while position < len(self.names) and (name := self.names[position]).startswith(prefix):
            if len(contents) + len(directories) == limit:
                is_truncated = True
                break
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                directory = prefix + head + delimiter
                position = bisect_left(self.names, directory + "\U0010ffff")
                last = directory.partition("/")[2] + "\U0010ffff"
                if last > after:
                    directories.append(directory.partition("/")[2])
                continue
            stored, last = self.objects[name], name.partition("/")[2]
            modified = stored.modified.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
            contents.append(
                f"<Contents><Key>{encode(last)}</Key><LastModified>{modified}Z</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
            position += 1
        parts = [f"<Name>{bucket}</Name><KeyCount>{len(contents)}</KeyCount><MaxKeys>{limit}</MaxKeys>"]
        if encode is quote:
            parts.append("<EncodingType>url</EncodingType>")
        parts.append(f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>")
        if is_truncated:
            parts.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
        parts += contents
        parts += (f"<CommonPrefixes><Prefix>{encode(each)}</Prefix></CommonPrefixes>" for each in directories)
        return _xml(f"<ListBucketResult>{''.join(parts)}</ListBucketResult>")

    def _existing(self, name: str) -> StoredObject:
        if name not in self.objects:
            raise S3Error("NoSuchKey")
        return self.objects[name]

    def _list_buckets(self) -> Answer:
        buckets = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in sorted(self.buckets))
        return _xml(f"<ListAllMyBucketsResult><Buckets>{buckets}</Buckets></ListAllMyBucketsResult>")

    def _list_uploads(self, bucket: str) -> Answer:
        prefix = f"{bucket}/"
        names = (each.name.removeprefix(prefix) for each in self.uploads.values() if each.name.startswith(prefix))
        uploads = "".join(f"<Upload><Key>{escape(name)}</Key></Upload>" for name in names)
        return _xml(f"<ListMultipartUploadsResult><Bucket>{bucket}</Bucket>{uploads}</ListMultipartUploadsResult>")

    def _parts(self, query: Mapping[str, str]) -> dict[int, bytes]:
        if query["uploadId"] not in self.uploads:
            raise S3Error("NoSuchUpload")
        return self.uploads[query["uploadId"]].parts

    def _check_conditions(self, name: str, headers: Mapping[str, str]) -> None:
        stored = self.objects.get(name)
        etag = headers.get("If-Match")
        if (headers.get("If-None-Match") and stored) or (etag and (stored is None or stored.etag != etag)):
            raise S3Error("PreconditionFailed")


def _parse(body: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(_NAMESPACE.sub(b"", body))


def _xml(text: str) -> Answer:
    return Answer(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), {"Content-Type": "application/xml"})


@dataclass
class S3Server(CountingServer):
    """HTTP side of the emulator."""

    emulator: S3Emulator = field(default_factory=S3Emulator)

    async def execute(self, request: web.BaseRequest, body: bytes) -> Answer:
        name = unquote(request.raw_path.partition("?")[0]).lstrip("/")  # `path` leaves an encoded slash encoded
        try:
            return self.emulator.answer(request.method, name, request.query, request.headers, body)
        except S3Error as error:
            return error_answer(_STATUS[str(error)], str(error))

    def control(self, command: str, arguments: Arguments) -> object:
        if command == "load":
            age = timedelta(seconds=float(arguments["age"]))
            return self.emulator.load(Path(str(arguments["directory"])), str(arguments["prefix"]), age)
        if command == "create_bucket":
            self.emulator.buckets.add(str(arguments["name"]))
            return None
        if command == "remove":
            self.emulator.remove_tree(str(arguments["prefix"]))
            return None
        return super().control(command, arguments)


if __name__ == "__main__":
    argparse.ArgumentParser(description="S3 emulator with latency; prints its address.").parse_args()
    asyncio.run(serve(S3Server()))
