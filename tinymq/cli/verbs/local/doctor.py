"""`tinymq doctor`: looks at this machine and at the brokers, and says what to do about each thing that is wrong."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tinymq.base.config import parse_address
from tinymq.base.errors import NotFound, TinymqError
from tinymq.base.quantity import quantity
from tinymq.base.version import VERSION
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.options import Output, epilogue
from tinymq.cli.common.output import print_json, print_line, print_table
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.proto import tinymq_pb2 as pb

Verdict = Literal["ok", "warning", "wrong"]
PACKAGES = ("google-crc32c", "grpcio", "protobuf", "pyarrow")
SYNCS = 20
SYNC_BYTES = 4096
SYNC_MS_SLOW = 20.0
FREE_BYTES_MIN = 5 << 30
FREE_SHARE_MIN = 0.05
OPEN_FILES_MIN = 20_000
BACKLOG_MIN = 1024
CONNECT_S = 2.0
CLOCK_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)
TIMEX_BYTES, TIMEX_STATUS_AT = 208, 40  # of struct timex on 64-bit Linux


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    do: str = ""  # "": nothing


def doctor(
    *,
    data_dir: Annotated[
        Path | None, Parameter(help="The directory whose disk is tried. [default: the current directory]")
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> int:
    """Look at this machine and at the brokers, and say what to do about each thing that is wrong.

    It looks at the versions, the disk and how long a sync takes, the clock, the limit of open files, kernel settings,
    and each address: whether it answers, is a port for clients, and belongs to a formed cluster. It writes one file of
    80 KiB, and removes it. Exits with 1 if something is wrong; a warning is not.
    """
    findings = [*machine(data_dir or Path()), *brokers(servers)]
    if output == "json":
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        wrong = sum(finding.verdict == "wrong" for finding in findings)
        warned = sum(finding.verdict == "warning" for finding in findings)
        print_line("all is well" if not wrong + warned else f"{wrong} wrong, {quantity(warned, 'warning')}")
        print_line()
        rows = [(finding.what, finding.verdict, finding.found, finding.do or None) for finding in findings]
        print_table(["what", "verdict", "found", "what to do"], rows)
    return Exit.FAILED if any(finding.verdict == "wrong" for finding in findings) else Exit.OK


def machine(data_dir: Path) -> Iterator[Finding]:
    """Look at the versions, the disk, the clock and the limits of this machine."""
    yield versions()
    yield from disk(data_dir)
    yield clock(clock_status())
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield backlog(Path("/proc/sys/net/core/somaxconn"))


def versions() -> Finding:
    """Name the versions of everything that the client stands on."""
    found = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return Finding("versions", "ok", f"tinymq {VERSION}, Python {platform.python_version()}, {found}")


def disk(directory: Path) -> Iterator[Finding]:
    """Look at the free space of a disk, and measure how long it takes to sync."""
    try:
        usage, took_ms = shutil.disk_usage(directory), sync_times_ms(directory)
    except OSError as error:
        yield Finding("disk", "wrong", f"{directory}: {error.strerror}", "choose a directory that this user can write")
        return
    scarce = usage.free < FREE_BYTES_MIN or usage.free < FREE_SHARE_MIN * usage.total
    space = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB are free"
    yield Finding("disk space", "warning" if scarce else "ok", space, "free some, or bound topics" if scarce else "")
    typical, slowest = statistics.median(took_ms), max(took_ms)
    slow = typical > SYNC_MS_SLOW
    yield Finding(
        "disk sync",
        "warning" if slow else "ok",
        f"{typical:.2f} ms, at most {slowest:.2f} ms",
        "each acknowledgement waits for a sync: use a faster disk, or sync=1000 per topic" if slow else "",
    )


def sync_times_ms(directory: Path, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Append to a new file and sync it, several times. The file is removed. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".tinymq-doctor-") as file:
        took_ms = []
        for _ in range(SYNCS):
            began = clock()
            os.write(file.fileno(), bytes(SYNC_BYTES))
            os.fdatasync(file.fileno())
            took_ms.append(1000 * (clock() - began))
    return took_ms


def clock_status() -> int | None:
    """Return the status bits of the kernel's clock; None if the kernel does not tell."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return int.from_bytes(buffer.raw[TIMEX_STATUS_AT : TIMEX_STATUS_AT + 4], "little")


def clock(status: int | None) -> Finding:
    """Judge whether the machine's clock is synchronized."""
    if status is None:
        return Finding("clock", "warning", "the kernel does not tell whether it is synchronized", "run NTP")
    if status & CLOCK_UNSYNCHRONIZED:
        return Finding("clock", "warning", "not synchronized", "run NTP: retention follows the brokers' clocks")
    return Finding("clock", "ok", "synchronized")


def open_files(soft: int, hard: int) -> Finding:
    """Judge the limit of open files. A broker raises the soft limit up to the hard one by itself."""
    limit = soft if hard == resource.RLIM_INFINITY else hard
    found = f"{soft}, and at most {'any number' if hard == resource.RLIM_INFINITY else hard}"
    if limit < OPEN_FILES_MIN:
        return Finding("open files", "warning", found, f"raise the hard limit to {OPEN_FILES_MIN} for brokers")
    return Finding("open files", "ok", found)


def backlog(setting: Path) -> Finding:
    """Judge how many connections may wait to be accepted."""
    try:
        allowed = int(setting.read_text())
    except (OSError, ValueError):
        return Finding("connection backlog", "warning", f"{setting} cannot be read", "check net.core.somaxconn")
    low = allowed < BACKLOG_MIN
    do = f"sysctl -w net.core.somaxconn={BACKLOG_MIN}" if low else ""
    return Finding("connection backlog", "warning" if low else "ok", str(allowed), do)


def brokers(servers: ServerOptions) -> Iterator[Finding]:
    """Ask each address for its broker's state."""
    from tinymq.dev import ask

    try:
        addresses, tls, token = servers.addresses(), servers.tls(), servers.token()
    except NotFound as error:
        yield Finding("brokers", "warning", error.message, error.hint)
        return
    reachable = []
    for address in addresses:
        unreachable = connection(address)
        if unreachable is None:
            reachable.append(address)
        else:
            yield unreachable
    for address, reply in zip(reachable, ask.status(reachable, servers.left_s, tls, token), strict=True):
        yield broker(address, reply)


def connection(address: str) -> Finding | None:
    """Return what is wrong with an address below gRPC: its name, or that nothing listens; None: nothing."""
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except socket.gaierror as error:
        return Finding(address, "wrong", f"no such host: {error.strerror}", "check the name, and DNS")
    except ConnectionRefusedError:
        return Finding(address, "wrong", "nothing listens there", "start the broker, or check its setting listen")
    except OSError as error:
        return Finding(address, "wrong", f"no connection: {error}", "check the network and its firewalls")
    return None


def broker(address: str, reply: pb.ClusterStatusReply | TinymqError) -> Finding:
    """Judge the answer of one broker."""
    if isinstance(reply, TinymqError):
        return Finding(address, "wrong", reply.message.removeprefix(f"{address}: "), reply.hint)
    found = f"broker {reply.broker_id} of version {reply.version} is {reply.state}"
    if reply.state == "unformed":
        return Finding(address, "wrong", found, "form the cluster: tinymq cluster init")
    if reply.state != "running":
        return Finding(address, "wrong", f"{found}: {reply.reason}", "see its log")
    if reply.version != VERSION:
        return Finding(address, "warning", f"{found}, and this command {VERSION}", "upgrade the older one")
    return Finding(address, "ok", found)


app = App(
    name="doctor",
    help_epilogue=epilogue(
        doctor,
        "tinymq doctor",
        "tinymq doctor --data-dir /var/lib/tinymq -s db1:7070",
    ),
)
app.default(doctor)
