"""Sends bytes from a file without any logic: the lowest possible cost of a scan's server. A process of its own:

    python -m benchmarks.spark.sending FILE

prints the port of 127.0.0.1 where it listens, and ends when its standard input does. A connection sends the number of
pieces of PIECE_BYTES that it wants (u64, little-endian), and gets them from the page cache.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tinymq.net.socket_options import prepare

PIECE_BYTES = 4 << 20
PIECES = 64  # in the file, in turns: the next piece is in no cache of the processor
WANTED = struct.Struct("<Q")


class Sending:
    """Runs while the block does. Creates its file in `folder`."""

    def __init__(self, folder: Path, pieces: int = PIECES) -> None:
        self._path = folder / "pieces"
        self._pieces = pieces
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        with self._path.open("wb") as file:
            for _ in range(self._pieces):
                file.write(os.urandom(PIECE_BYTES))
        command = [sys.executable, "-m", "benchmarks.spark.sending", str(self._path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._path.unlink()


def _serve(connection: socket.socket, file: int) -> None:
    with connection:
        (wanted,) = WANTED.unpack(connection.recv(WANTED.size, socket.MSG_WAITALL))
        pieces = os.fstat(file).st_size // PIECE_BYTES
        for number in range(wanted):
            position = number % pieces * PIECE_BYTES
            end = position + PIECE_BYTES
            while position < end:
                position += os.sendfile(connection.fileno(), file, position, end - position)


def main() -> None:
    file = os.open(sys.argv[1], os.O_RDONLY)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = listening.accept()
            prepare(connection)  # as brokers do
            threading.Thread(target=_serve, args=(connection, file), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
