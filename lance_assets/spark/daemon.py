"""The process that starts Spark's Python workers where driver and workers are on one machine: PySpark's, less a word.

A worker that had nothing to do for a minute is let go by Spark, which closes its socket. It says that it could not say
good-bye: over TCP to nobody, over a socket of the machine to the log, as an error with a traceback. Here it just ends.
"""

import socket

from pyspark import daemon

_pyspark_worker = daemon.worker
_RELEASED = 1


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Until its task is done. Whoever is not listened to any more has nobody to tell."""
    try:
        return int(_pyspark_worker(sock, authenticated))
    except BrokenPipeError:
        return _RELEASED


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
