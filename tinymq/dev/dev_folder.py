"""The folder of a local cluster: who its brokers are, where they listen, which processes they run as.

    cluster.json      brokers, their ports, whether the cluster was formed; written again when it is, and when it grows
    secret            shared by the brokers, mode 0600
    broker-N.toml     what broker N is started with
    broker-N.pid      the process it runs as: id and start time; absent when it was stopped
    broker-N.log      what it says
    broker-N/         its data folder

Files only: nothing here starts or signals a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from tinymq.base.errors import CorruptData, FolderInUse, InvalidRequest, NotFound
from tinymq.base.private_files import check_own_directory, make_private_directory, open_private, read_private
from tinymq.dev.process import Process
from tinymq.net.loopback_ports import HOST, free_ports, is_free

DEFAULT = Path(".tinymq/dev")
BROKERS_ALLOWED = (1, 3, 5)  # of a new local cluster: they vote on its metadata; more are added
BROKERS_MAX = 16  # processes on one machine
FORMAT = 1
SECRET_BYTES = 32
FIRST_PORT = 7070  # as in the documents' examples
PEER_PORTS_AFTER = 100  # broker N's port for other brokers is its port for clients and this
METRICS_PORTS_AFTER = 200  # the same for who watches it
ANY_PORT = 0


@dataclass(frozen=True, slots=True)
class DevBroker:
    """One broker of a local cluster. Its ports stay the same for as long as the cluster is kept."""

    id: int
    address: str
    peer_address: str
    metrics_address: str = ""  # "": of a cluster that was made before brokers had one
    joined: bool = field(default=False, kw_only=True)  # added later: it has no vote on the metadata


@dataclass(frozen=True, slots=True)
class DevFolder:
    """A local cluster's folder and what its cluster.json says."""

    path: Path
    brokers: tuple[DevBroker, ...]
    formed: bool = False

    @property
    def servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def voters(self) -> tuple[DevBroker, ...]:
        """Those that the cluster was made with."""
        return tuple(broker for broker in self.brokers if not broker.joined)

    @property
    def secret(self) -> bytes:
        """What `secret_file` holds: brokers read it the same way, as its bytes without surrounding blanks."""
        return (self.path / "secret").read_bytes().strip()

    def broker(self, number: int) -> DevBroker:
        """Broker `number`. Raises NotFound."""
        for broker in self.brokers:
            if broker.id == number:
                return broker
        known = ", ".join(str(broker.id) for broker in self.brokers)
        raise NotFound(f"this cluster has no broker {number}", hint=f"it has {known}")

    def config(self, number: int) -> Path:
        return self.path / f"broker-{number}.toml"

    def log(self, number: int) -> Path:
        return self.path / f"broker-{number}.log"

    def data(self, number: int) -> Path:
        return self.path / f"broker-{number}"

    def process(self, number: int) -> Process | None:
        """The process that was last started for broker `number`, alive or not; None after a stop."""
        try:
            found = json.loads(read_private(self._pid(number)))
            return Process(int(found["pid"]), str(found["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{self._pid(number)} is damaged", hint="remove it if that broker is stopped") from error

    def set_process(self, number: int, process: Process | None) -> None:
        """Write down, or forget, the process of broker `number`."""
        if process is None:
            self._pid(number).unlink(missing_ok=True)
        else:
            _write(self._pid(number), json.dumps({"pid": process.pid, "started": process.started}))

    def set_formed(self) -> DevFolder:
        """Write down that the brokers form a cluster now."""
        formed = replace(self, formed=True)
        _save(formed)
        return formed

    def with_one_more(self) -> DevFolder:
        """With another broker, the last, which is to join the others. Raises InvalidRequest."""
        if len(self.brokers) >= BROKERS_MAX:
            raise InvalidRequest(f"a local cluster has at most {BROKERS_MAX} brokers")
        number = max(broker.id for broker in self.brokers) + 1
        port = 1 + max(int(broker.address.rpartition(":")[2]) for broker in self.brokers)
        ports = [port + after for after in (0, PEER_PORTS_AFTER, METRICS_PORTS_AFTER)]
        if not all(map(is_free, ports)):
            ports = free_ports(len(ports))
        broker = DevBroker(number, *(f"{HOST}:{port}" for port in ports), joined=True)
        grown = replace(self, brokers=(*self.brokers, broker))
        _write(self.config(number), _toml(self, broker, join=[voter.peer_address for voter in self.voters]))
        _save(grown)
        return grown

    def without(self, broker: DevBroker) -> DevFolder:
        """As before `broker` was added, which must be stopped; its data goes, too."""
        left = replace(self, brokers=tuple(other for other in self.brokers if other != broker))
        _save(left)
        shutil.rmtree(self.data(broker.id), ignore_errors=True)
        for file in (self.config(broker.id), self.log(broker.id), self._pid(broker.id)):
            file.unlink(missing_ok=True)
        return left

    def remove(self) -> None:
        """Remove the folder and all data in it. The brokers must be stopped."""
        shutil.rmtree(self.path)

    def _pid(self, number: int) -> Path:
        return self.path / f"broker-{number}.pid"


def load(path: Path) -> DevFolder:
    """The local cluster in `path`. Raises NotFound when there is none."""
    file = path / "cluster.json"
    try:
        found = json.loads(read_private(file))
        brokers = tuple(_broker(each) for each in found["brokers"])
        if found["format"] != FORMAT:
            raise CorruptData(f"{file} has format {found['format']!r}, not {FORMAT}")
        return DevFolder(path, brokers, bool(found["formed"]))
    except FileNotFoundError:
        raise NotFound(f"there is no local cluster in {path}", hint="start one: tinymq dev up") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{file} is damaged", hint=f"end its brokers ({path}/*.pid), then remove {path}") from error


def _broker(said: dict[str, object]) -> DevBroker:
    metrics_address = str(said.get("metrics_address", ""))
    joined = bool(said.get("joined", False))
    addresses = str(said["address"]), str(said["peer_address"]), metrics_address
    return DevBroker(int(str(said["id"])), *addresses, joined=joined)


def exists(path: Path) -> bool:
    """Is there a local cluster in `path`, well or damaged?"""
    return (path / "cluster.json").exists()


def check_number(brokers: int) -> None:
    """Raises InvalidRequest for a number of brokers that a local cluster cannot have."""
    if brokers not in BROKERS_ALLOWED:
        hint = "tinymq dev up -n 3; then tinymq dev add, for each broker more"
        raise InvalidRequest(f"a local cluster begins with 1, 3 or 5 brokers, not {brokers}", hint=hint)


def create(path: Path, brokers: int, first_port: int = ANY_PORT) -> DevFolder:
    """Lay out a new local cluster of `brokers` brokers on loopback. Starts nothing.

    Clients find them on `first_port` and the ports after it, if all that are needed are free; else on any.
    """
    check_number(brokers)
    ports = list(range(first_port, first_port + brokers))
    ports = [port + after for after in (0, PEER_PORTS_AFTER, METRICS_PORTS_AFTER) for port in ports]
    if first_port == ANY_PORT or not all(map(is_free, ports)):
        ports = free_ports(3 * brokers)
    addresses = [f"{HOST}:{port}" for port in ports]
    make_private_directory(path)
    folder = DevFolder(
        path,
        tuple(DevBroker(i + 1, *addresses[i::brokers]) for i in range(brokers)),
    )
    _write(path / "secret", secrets.token_hex(SECRET_BYTES) + "\n")
    voters = [f"{broker.id}@{broker.peer_address}" for broker in folder.brokers]
    for broker in folder.brokers:
        _write(folder.config(broker.id), _toml(folder, broker, voters=voters))
    _save(folder)  # last: a folder without cluster.json is no cluster
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing the cluster in `path` at the same time. Raises FolderInUse; UnsafePath when the
    folder belongs to another user, or when the lock file is a symbolic link.

    The lock's file goes when there is no cluster at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        check_own_directory(path)
    lock = path.with_name(path.name + ".lock")
    with os.fdopen(open_private(lock, os.O_RDWR | os.O_CREAT), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(file, lock):  # its last holder removed it after we had opened it
                raise BlockingIOError
        except BlockingIOError:
            hint = "wait for it to end"
            raise FolderInUse(f"another command is changing the local cluster in {path}", hint=hint) from None
        try:
            yield
        finally:
            if not exists(path):
                lock.unlink(missing_ok=True)


@contextlib.contextmanager
def locked_cluster(path: Path) -> Iterator[DevFolder]:
    """As `locked`, for a cluster that is there. Raises NotFound, and then nothing was made."""
    load(path)
    with locked(path):
        yield load(path)


def _is_still(file: IO[str], path: Path) -> bool:
    """Is the open `file` the one that has this name?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _toml(folder: DevFolder, broker: DevBroker, **others: Sequence[str]) -> str:
    """`others`: its `voters`, or whom it is to `join`."""
    # JSON's strings and lists of strings are TOML's, too.
    values: dict[str, object] = {
        "broker_id": broker.id,
        "data_dir": str(folder.data(broker.id).absolute()),
        "listen": broker.address,
        "peer_listen": broker.peer_address,
        "metrics_listen": broker.metrics_address,
        **others,
        "secret_file": str((folder.path / "secret").absolute()),
    }
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _save(folder: DevFolder) -> None:
    brokers = [asdict(broker) for broker in folder.brokers]
    document = {"format": FORMAT, "formed": folder.formed, "brokers": brokers}
    _write(folder.path / "cluster.json", json.dumps(document, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    """Replace `path` in one step, readable by its owner alone."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.rename(path)
