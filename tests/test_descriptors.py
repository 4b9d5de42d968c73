"""The share of file descriptors that connections may take, and a broker that has none left."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq.base.errors import OutOfDescriptors
from tinymq.log.files.files import RealFiles
from tinymq.net import descriptors
from tinymq.net.descriptors import METRICS_CONNECTIONS_MAX, files_share, share


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 4096, 20_000, 65_536, 1 << 20])
@pytest.mark.parametrize("connections_max", [8, 500, 10_000, 1 << 62])
def test_connections_never_take_more_than_half_and_every_port_has_some(limit: int, connections_max: int) -> None:
    shares = share(limit, connections_max)
    assert shares.connections <= max(8, min(connections_max, limit // 2))
    assert min(shares.clients, shares.streams, shares.peers, shares.metrics) >= 1
    assert shares.clients >= shares.streams
    assert shares.metrics <= METRICS_CONNECTIONS_MAX
    if limit >= 256:  # a stream may have a file open that it sends, and a duplicate of its socket
        assert shares.connections + 2 * shares.streams + files_share(limit) <= limit


def test_the_usual_shares() -> None:
    assert share(1024, 10_000).clients == 224
    assert share(20_000, 10_000).clients == 6956


@contextlib.contextmanager
def nothing_left(free: int) -> Iterator[None]:
    """Use all but `free` descriptors of a lowered limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, lowest + 64), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_files_have_a_reserve_when_nothing_is_left(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.make_directory("a")
    with nothing_left(0):
        opened = [files.open(f"a/{n}", create=True) for n in range(descriptors.RESERVE - 1)]
        files.sync_directory("a")
        assert len(files.list("a")) == descriptors.RESERVE - 1
        opened.append(files.open("a/last", create=True))
        for refused in (
            lambda: files.open("a/one", create=True), lambda: files.list("a"), lambda: files.sync_directory("a"),
        ):  # fmt: skip
            with pytest.raises(OutOfDescriptors):
                refused()
        for file in opened:
            file.close()
        files.open("a/again", create=True).close()
    files.sync_directory("a")  # the broker has its reserve again, and connections return the excess
    assert len(files._reserve._kept) == descriptors.RESERVE, "the reserve is filled again"


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    script = (
        "import resource; from tinymq.net import descriptors;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)); print(descriptors.limit(), descriptors.raise_limit());"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); print(descriptors.raise_limit())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.split() == ["64", "512", "512"]
