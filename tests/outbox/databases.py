"""The databases of the tests: files of SQLite, and a real PostgreSQL server from the wheel `pgserver`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

START_S_MAX = 100.0
LOCKED_S_MAX = 60  # while another connection writes
LOOK_S = 0.05
NOBODY = "nobody"  # PostgreSQL refuses to run as root


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database. One URL for threads, and one for asyncio."""

    url: str
    async_url: str


def sqlite(folder: Path) -> Database:
    path = folder / f"{uuid4().hex}.db"
    where = f"{path}?timeout={LOCKED_S_MAX}"
    return Database(f"sqlite:///{where}", f"sqlite+aiosqlite:///{where}")


class PostgresServer:
    """A server in a directory of its own, which listens on a socket there only."""

    def __init__(self, folder: Path) -> None:
        spec = find_spec("pgserver")
        assert spec is not None
        assert spec.origin is not None, "pgserver is a package"
        self._programs = Path(spec.origin).parent / "pginstall"
        self._folder = folder
        self._data = folder / "data"
        self._user = NOBODY if os.geteuid() == 0 else None
        self._running: subprocess.Popen[bytes] | None = None
        if self._user is not None:  # that user may not read the folder of the wheel
            package = self._programs.parent
            libraries = package.with_name("pgserver.libs")  # the programs look for them there
            shutil.copytree(libraries, folder / libraries.name)
            self._programs = Path(shutil.copytree(self._programs, folder / package.name / self._programs.name))
            shutil.chown(folder, self._user)
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync")

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self._running is None
        with (self._folder / "log").open("ab") as log:
            command = [*self._command("postgres"), "-h", "", "-k", str(self._folder)]
            self._running = subprocess.Popen(command, user=self._user, stdout=log, stderr=log)
        until_s = time.monotonic() + START_S_MAX
        while not self._answers():
            assert time.monotonic() < until_s, (self._folder / "log").read_text()
            with suppress(subprocess.TimeoutExpired):
                self._running.wait(LOOK_S)
                raise AssertionError((self._folder / "log").read_text())

    def kill(self) -> None:
        """Kill the server, as a power cut would. Its processes end by themselves when the first one is gone."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()
        self._running = None

    def stop(self) -> None:
        if self._running is not None:
            self._running.send_signal(signal.SIGINT)  # SIGTERM would wait for clients to leave
            self._running.wait()
            self._running = None

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def database(self) -> Database:
        """A new database."""
        name = f"test_{uuid4().hex}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return Database(self.url(name), self.url(name))

    def _answers(self) -> bool:
        engine = create_engine(self.url("postgres"), poolclass=NullPool)
        try:
            with engine.connect():
                return True
        except OperationalError:
            return False

    def _command(self, program: str) -> list[str]:
        return [str(self._programs / "bin" / program), "-D", str(self._data)]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([*self._command(program), *arguments], user=self._user, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


@contextmanager
def postgresql() -> Iterator[PostgresServer]:
    """A server that lives as long as the block."""
    with TemporaryDirectory(prefix="tinymq-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
