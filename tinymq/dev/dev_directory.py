"""The directory of a local cluster: its brokers, their addresses and their processes.

    cluster.json      the brokers, their ports, and whether the cluster is formed
    secret            shared by the brokers, mode 0600
    broker-N.toml     the configuration of broker N
    broker-N.pid      the process of broker N: its id and start time; absent after a stop
    broker-N.log      the log of broker N
    broker-N/         the data directory of broker N

This module handles files only. It starts and signals no process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tinymq.base.errors import CorruptData, FolderInUse, InvalidRequest, NotFound
from tinymq.base.private_files import check_own_directory, make_private_directory, open_private, read_private
from tinymq.dev.process import Process
from tinymq.net.loopback_ports import HOST, free_ports, is_free

if TYPE_CHECKING:
    from tinymq.net.client_tls import ClientTls

DEFAULT = Path(".tinymq/dev")
BROKERS_ALLOWED = (1, 3, 5)  # in a new local cluster, all of which vote on its metadata; `add` adds more without a vote
BROKERS_MAX = 16  # processes on one machine
FORMAT = 1
SECRET_BYTES = 32
FIRST_PORT = 7070  # the port in the examples of docs/
PEER_PORTS_AFTER = 100  # a broker's peer port is its client port plus this
METRICS_PORTS_AFTER = 200  # a broker's metrics port is its client port plus this
ANY_PORT = 0

TakePorts = Callable[[int], list[int]]  # returns as many free ports, all different


@dataclass(frozen=True, slots=True)
class DevBroker:
    """One broker of a local cluster. Its ports never change."""

    id: int
    address: str
    peer_address: str
    metrics_address: str = ""  # "": the cluster was made by a version without metrics
    joined: bool = field(default=False, kw_only=True)  # added later, so it has no vote on the metadata


@dataclass(frozen=True, slots=True)
class DevDirectory:
    """A local cluster's directory and the content of its cluster.json."""

    path: Path
    brokers: tuple[DevBroker, ...]
    formed: bool = False
    secure: bool = False  # brokers require TLS, and check callers

    @property
    def servers(self) -> str:
        """The brokers, as a client takes them."""
        return ("tinymq+tls://" if self.secure else "") + ",".join(broker.address for broker in self.brokers)

    @property
    def certificates(self) -> Path:
        """Of a secure cluster: the directories of the authority, and of each broker."""
        return self.path / "certificates"

    @property
    def authority(self) -> str:
        """Of a secure cluster: the file by which clients know its brokers. "": it is not secure."""
        return str((self.certificates / "ca" / "ca.crt").absolute()) if self.secure else ""

    @property
    def token_file(self) -> Path:
        """Of a secure cluster: the file with its administrator's token."""
        return self.path / "admin.token"

    @property
    def token(self) -> str:
        """The administrator's token; "" without users, and before the cluster has formed."""
        return read_private(self.token_file).strip() if self.secure and self.token_file.exists() else ""

    @property
    def tls(self) -> ClientTls | None:
        """How to call the brokers; None: without TLS."""
        from tinymq.net.client_tls import ClientTls  # here: a command without TLS starts faster
        from tinymq.net.tls_files import Paths, TlsFiles

        return ClientTls(TlsFiles(Paths(Path(self.authority)))) if self.secure else None

    def keep_token(self, token: str) -> None:
        """Keep the administrator's token."""
        _write(self.token_file, token + "\n")

    @property
    def voters(self) -> tuple[DevBroker, ...]:
        """The brokers that the cluster was created with, which vote on its metadata."""
        return tuple(broker for broker in self.brokers if not broker.joined)

    @property
    def secret(self) -> bytes:
        """The shared secret: the bytes of its file without surrounding whitespace, as brokers read it."""
        return (self.path / "secret").read_bytes().strip()

    def broker(self, number: int) -> DevBroker:
        """Return broker `number`. Raises NotFound."""
        for broker in self.brokers:
            if broker.id == number:
                return broker
        numbers = ", ".join(str(broker.id) for broker in self.brokers)
        raise NotFound(f"this cluster has no broker {number}", hint=f"it has {numbers}")

    def config(self, number: int) -> Path:
        return self.path / f"broker-{number}.toml"

    def log(self, number: int) -> Path:
        return self.path / f"broker-{number}.log"

    def data(self, number: int) -> Path:
        return self.path / f"broker-{number}"

    def process(self, number: int) -> Process | None:
        """Return the process that was started last for broker `number`, alive or not; None after a stop."""
        try:
            content = json.loads(read_private(self._pid(number)))
            return Process(int(content["pid"]), str(content["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{self._pid(number)} is damaged", hint="remove it if that broker is stopped") from error

    def set_process(self, number: int, process: Process | None) -> None:
        """Record the process of broker `number`, or with None remove the record."""
        if process is None:
            self._pid(number).unlink(missing_ok=True)
        else:
            _write(self._pid(number), json.dumps({"pid": process.pid, "started": process.started}))

    def set_formed(self) -> DevDirectory:
        """Record that the brokers form a cluster, and return the new value."""
        formed = replace(self, formed=True)
        _save(formed)
        return formed

    def with_one_more(self, take_ports: TakePorts = free_ports) -> DevDirectory:
        """Add a broker, configured to join the others, as the last one. Starts nothing. Raises InvalidRequest.

        `take_ports`: as for `create`.
        """
        if len(self.brokers) >= BROKERS_MAX:
            raise InvalidRequest(f"a local cluster has at most {BROKERS_MAX} brokers")
        number = max(broker.id for broker in self.brokers) + 1
        port = 1 + max(int(broker.address.rpartition(":")[2]) for broker in self.brokers)
        ports = [port + after for after in (0, PEER_PORTS_AFTER, METRICS_PORTS_AFTER)]
        used = self._ports()  # a port of a stopped broker is free, and yet not for another broker
        if used.intersection(ports) or not all(map(is_free, ports)):
            ports = [port for port in take_ports(len(ports) + len(used)) if port not in used][: len(ports)]
        broker = DevBroker(number, *(f"{HOST}:{port}" for port in ports), joined=True)
        grown = replace(self, brokers=(*self.brokers, broker))
        if self.secure:
            _certify(self, [broker])
        _write(self.config(number), _toml(self, broker, join=[voter.peer_address for voter in self.voters]))
        _save(grown)
        return grown

    def _ports(self) -> set[int]:
        """The ports of all brokers, running or not."""
        addresses = [a for each in self.brokers for a in (each.address, each.peer_address, each.metrics_address)]
        return {int(address.rpartition(":")[2]) for address in addresses}

    def without(self, broker: DevBroker) -> DevDirectory:
        """Remove `broker` with its files and data. The broker must be stopped."""
        left = replace(self, brokers=tuple(other for other in self.brokers if other != broker))
        _save(left)
        shutil.rmtree(self.data(broker.id), ignore_errors=True)
        for file in (self.config(broker.id), self.log(broker.id), self._pid(broker.id)):
            file.unlink(missing_ok=True)
        return left

    def remove(self) -> None:
        """Remove the directory and all data in it. The brokers must be stopped."""
        shutil.rmtree(self.path)

    def _pid(self, number: int) -> Path:
        return self.path / f"broker-{number}.pid"


def load(path: Path) -> DevDirectory:
    """Load the local cluster in `path`. Raises NotFound if there is none."""
    file = path / "cluster.json"
    try:
        content = json.loads(read_private(file))
        brokers = tuple(_broker(each) for each in content["brokers"])
        if content["format"] != FORMAT:
            raise CorruptData(f"{file} has format {content['format']!r}, not {FORMAT}")
        return DevDirectory(path, brokers, bool(content["formed"]), bool(content.get("secure", False)))
    except FileNotFoundError:
        raise NotFound(f"there is no local cluster in {path}", hint="start one: tinymq dev up") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{file} is damaged", hint=f"stop its brokers ({path}/*.pid), then remove {path}") from error


def _broker(values: dict[str, object]) -> DevBroker:
    metrics_address = str(values.get("metrics_address", ""))
    joined = bool(values.get("joined", False))
    addresses = str(values["address"]), str(values["peer_address"]), metrics_address
    return DevBroker(int(str(values["id"])), *addresses, joined=joined)


def exists(path: Path) -> bool:
    """Return whether there is a local cluster in `path`, damaged or not."""
    return (path / "cluster.json").exists()


def check_number(brokers: int) -> None:
    """Raise InvalidRequest for a number of brokers that a new local cluster cannot have."""
    if brokers not in BROKERS_ALLOWED:
        hint = "tinymq dev up -n 3; then tinymq dev add, once for each additional broker"
        raise InvalidRequest(f"a local cluster begins with 1, 3 or 5 brokers, not {brokers}", hint=hint)


def create(
    path: Path,
    brokers: int,
    first_port: int = ANY_PORT,
    *,
    secure: bool = False,
    take_ports: TakePorts = free_ports,
) -> DevDirectory:
    """Create the directory of a new local cluster of `brokers` brokers on loopback. Starts nothing.

    The brokers serve clients on `first_port` and the ports after it. If one of the ports that they need is taken, all
    of them get any free ports, from `take_ports`: a reservation keeps these until the brokers listen. With `secure`,
    the brokers get certificates of an authority of their own, and require TLS.
    """
    check_number(brokers)
    ports = list(range(first_port, first_port + brokers))
    ports = [port + after for after in (0, PEER_PORTS_AFTER, METRICS_PORTS_AFTER) for port in ports]
    if first_port == ANY_PORT or not all(map(is_free, ports)):
        ports = take_ports(3 * brokers)
    addresses = [f"{HOST}:{port}" for port in ports]
    make_private_directory(path)
    folder = DevDirectory(
        path,
        tuple(DevBroker(i + 1, *addresses[i::brokers]) for i in range(brokers)),
        secure=secure,
    )
    if secure:
        _certify(folder, folder.brokers)
    _write(path / "secret", secrets.token_hex(SECRET_BYTES) + "\n")
    voters = [f"{broker.id}@{broker.peer_address}" for broker in folder.brokers]
    for broker in folder.brokers:
        _write(folder.config(broker.id), _toml(folder, broker, voters=voters))
    _save(folder)  # last: a directory without cluster.json is not a cluster
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing the cluster in `path` at the same time.

    Raises FolderInUse if another command changes it, and UnsafePath if the directory belongs to another user or the
    lock file is a symbolic link. The lock file is removed if there is no cluster at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        check_own_directory(path)
    lock = path.with_name(path.name + ".lock")
    with os.fdopen(open_private(lock, os.O_RDWR | os.O_CREAT), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(file, lock):  # its previous holder removed it after we opened it
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
def locked_cluster(path: Path) -> Iterator[DevDirectory]:
    """Lock an existing cluster, as `locked` does, and load it. Raises NotFound, and then creates no file."""
    load(path)  # before `locked`, which would create the parent directory and the lock file
    with locked(path):
        yield load(path)


def _is_still(file: IO[str], path: Path) -> bool:
    """Return whether `path` still names the open `file`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _toml(folder: DevDirectory, broker: DevBroker, **others: Sequence[str]) -> str:
    """Return the configuration file of a broker. `others` is its `voters`, or the addresses that it must `join`."""
    # Strings and lists of strings are written the same way in JSON and in TOML.
    values: dict[str, object] = {
        "broker_id": broker.id,
        "data_dir": str(folder.data(broker.id).absolute()),
        "listen": broker.address,
        "peer_listen": broker.peer_address,
        "metrics_listen": broker.metrics_address,
        **others,
        "secret_file": str((folder.path / "secret").absolute()),
    }
    if folder.secure:
        values |= {"security": "required", "tls_dir": str(_certificate(folder, broker).absolute())}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _certificate(folder: DevDirectory, broker: DevBroker) -> Path:
    return folder.certificates / f"broker-{broker.id}"


def _certify(folder: DevDirectory, brokers: Sequence[DevBroker]) -> None:
    """Make certificates for brokers, and the authority if there is none."""
    from tinymq.dev import certificates

    place = folder.certificates / "ca"
    if not place.exists():
        make_private_directory(folder.certificates)
        certificates.Authority.make(f"tinymq {folder.path.absolute().name}").write(place)
    authority = certificates.Authority.read(place)
    for broker in brokers:
        certificates.write_issued(_certificate(folder, broker), authority.pem, authority.broker(broker.id))


def _save(folder: DevDirectory) -> None:
    brokers = [asdict(broker) for broker in folder.brokers]
    document = {"format": FORMAT, "formed": folder.formed, "brokers": brokers}
    if folder.secure:
        document["secure"] = True
    _write(folder.path / "cluster.json", json.dumps(document, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    """Replace `path` atomically. Only its owner can read it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.rename(path)
