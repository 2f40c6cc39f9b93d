"""Request counts: how many requests of each kind an operation sends to an object store, and how many bytes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

KINDS = ("GET", "HEAD", "LIST", "PUT", "DELETE")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Request that the store has executed, with the sizes of both bodies."""

    method: str
    path: str
    """Path and query."""
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of one operation by kind, and the bytes of all bodies."""

    get: int = 0
    head: int = 0
    list: int = 0
    put: int = 0
    """Puts of objects and of parts of objects, and the requests that begin and end an object of several parts."""
    delete: int = 0
    """Deletions of one object or of many objects at once."""
    bytes_read: int = 0
    bytes_written: int = 0

    @classmethod
    def of(cls, transfers: Iterable[Transfer]) -> "RequestCounts":
        kinds: Counter[str] = Counter()
        bytes_read = bytes_written = 0
        for transfer in transfers:
            kinds[kind_of(transfer)] += 1
            bytes_read += transfer.received
            bytes_written += transfer.sent
        numbers = {kind.lower(): kinds[kind] for kind in KINDS}
        return cls(**numbers, bytes_read=bytes_read, bytes_written=bytes_written)

    @property
    def by_kind(self) -> tuple[int, ...]:
        """Numbers of requests in the order of `KINDS`."""
        return self.get, self.head, self.list, self.put, self.delete

    @property
    def total(self) -> int:
        return sum(self.by_kind)


def kind_of(transfer: Transfer) -> str:
    """Return the kind of a request to S3, Azure or Google Cloud Storage."""
    query = parse_qs(urlsplit(transfer.path).query, keep_blank_values=True)
    if transfer.method == "POST":
        is_batch = query.get("comp") == ["batch"] or transfer.path.startswith("/batch/")
        return "DELETE" if "delete" in query or is_batch else "PUT"
    if transfer.method == "GET" and ("list-type" in query or "prefix" in query or query.get("comp") == ["list"]):
        return "LIST"
    return transfer.method
