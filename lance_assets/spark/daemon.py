"""Worker daemon: PySpark's daemon for Python workers without the error that it logs for a released worker.

Spark releases a worker that was idle for a minute by closing its socket. PySpark's worker then fails to send its
last message. Over TCP this goes unnoticed; over a Unix domain socket it logs an error with a traceback. This daemon
ends such a worker silently. Sessions whose driver and workers share a machine use it (`session.py`).
"""

import socket

from pyspark import daemon

pyspark_worker = daemon.worker
"""PySpark's own worker function, which `worker` wraps."""
_RELEASED = 1
"""Exit code of a worker whose socket Spark has closed."""


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run PySpark's worker; end silently if Spark has closed its socket."""
    try:
        return int(pyspark_worker(sock, authenticated))
    except BrokenPipeError:
        return _RELEASED


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
