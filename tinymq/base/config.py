"""A broker's configuration as small frozen values, each checked once when it is made.

No I/O, and no defaults anywhere else: every bound and every delay of a broker is a field here. tinymq/app/settings.py
reads configuration from files and from the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from ipaddress import ip_address

from tinymq.base.errors import InvalidConfig
from tinymq.base.identity.issuer_config import IssuerConfig
from tinymq.base.types import PAYLOAD_BYTES_MAX, PeerAddress

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

GRPC_OVERHEAD_BYTES = 256 * KIB  # allowance for the parts of a gRPC message around a batch
SECRET_BYTES_MIN = 16
MESSAGE_BYTES_MAX = GIB  # the largest setting for one gRPC message, or one frame between brokers
LIMIT_MAX = 1 << 62
JOIN_MAX = 16  # addresses in `join`
DIAL_MAX = 256  # brokers in `dial`, and in `forward`
ANY_HOST = ("0.0.0.0", "::")  # hosts for listening, at which no broker can be dialled
TLS_SCHEME, PLAIN_SCHEME = "tinymq+tls://", "tinymq://"  # in front of the addresses that a client is given
DELAY_S_MAX = 86_400.0  # delays are sent as milliseconds in 32 bits

SCHEME = re.compile(r"[a-z]{1,32}://")  # of a registry's URL; the data directory stores the scheme
ZOOKEEPER = "zookeeper://"
ZOOKEEPER_CHROOT = "/tinymq"  # when the URL names none
_CHROOT = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._-]{1,255}){1,16}")

_HOST = re.compile(r"[^\s\x00-\x1f\x7f\[\]@/]{1,255}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidConfig(message)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in bytes and counts. A request over a bound gets a typed error, and no queue is unbounded."""

    record_bytes_max: int = 8 * MIB  # one record, unpacked: key, value and headers
    batch_bytes_max: int = 8 * MIB  # one batch as stored, header included
    batch_uncompressed_bytes_max: int = 64 * MIB  # sum of a batch's declared Arrow buffer lengths
    batch_records_max: int = 1_000_000
    fetch_bytes_max: int = 8 * MIB  # one answer to a fetch, unless its first batch is larger
    inflight_bytes_max: int = 8 * MIB  # sent to one peer for one group and not acknowledged yet
    uncommitted_bytes_max: int = 64 * MIB  # appended by a leader and not committed yet, per group
    tail_cache_bytes_max: int = 64 * MIB  # of log entries in memory, over all groups of a broker
    segment_bytes: int = 1 * GIB
    memory_storage_bytes_max: int = 1 * GIB  # over all topics in memory, on this broker
    peer_frame_bytes_max: int = 72 * MIB  # one message between brokers
    peer_buffer_bytes_max: int = 64 * MIB  # waiting to be sent on one connection between brokers
    peer_unfinished_bytes_max: int = 144 * MIB  # incomplete large messages of other brokers
    state_bytes_max: int = 256 * MIB  # of a snapshot that a replica installs
    stream_inflight_bytes_max: int = 32 * MIB  # of one produce or fetch stream: received and not answered yet
    stream_requests_max: int = 4096  # of one stream: waiting fetches, or batches without an answer
    waiting_fetches_max: int = 16_384  # waiting fetches of one broker, over all streams
    unfinished_bytes_max: int = 64 * MIB  # incomplete large frames on the stream port
    connections_max: int = 10_000  # on all ports of a broker; at most half of its file descriptors
    connection_streams_max: int = 256  # concurrent gRPC calls per client connection
    delayed_batches_max: int = 100_000  # delayed batches that wait in one partition
    delayed_bytes_max: int = 4 * GIB
    broker_delayed_batches_max: int = 1_000_000  # over all replicas of one broker
    broker_delayed_bytes_max: int = 16 * GIB
    staged_batches_max: int = 200_000  # batches of transactions that have no end yet, in one partition
    staged_bytes_max: int = 4 * GIB
    broker_staged_batches_max: int = 1_000_000  # over all replicas of one broker
    broker_staged_bytes_max: int = 16 * GIB
    client_produce_bytes_per_s: int = 0  # from one client to this broker; 0: no bound
    client_fetch_bytes_per_s: int = 0  # from this broker to one client; 0: no bound

    def __post_init__(self) -> None:
        for f in fields(self):
            least = 0 if f.name.endswith("_per_s") else 1
            value = getattr(self, f.name)
            _require(least <= value <= LIMIT_MAX, f"{f.name} must be at least {least}, and at most {LIMIT_MAX}")
        for name in ("fetch_bytes_max", "peer_frame_bytes_max"):
            _require(getattr(self, name) <= MESSAGE_BYTES_MAX, f"{name} is over {MESSAGE_BYTES_MAX}")
        _require(self.record_bytes_max <= self.batch_uncompressed_bytes_max, "record_bytes_max is over a batch's size")
        _require(self.batch_bytes_max <= PAYLOAD_BYTES_MAX, f"batch_bytes_max is over {PAYLOAD_BYTES_MAX}")
        _require(self.batch_bytes_max < self.peer_frame_bytes_max, "batch_bytes_max must be below peer_frame_bytes_max")
        _require(self.batch_bytes_max <= self.uncommitted_bytes_max, "batch_bytes_max is over uncommitted_bytes_max")
        _require(
            self.batch_bytes_max <= self.stream_inflight_bytes_max, "batch_bytes_max over stream_inflight_bytes_max"
        )
        _require(self.batch_bytes_max <= self.fetch_bytes_max, "batch_bytes_max is over fetch_bytes_max")

    @property
    def grpc_message_bytes_max(self) -> int:
        """The size of a gRPC message with the largest fetch or batch."""
        return max(self.fetch_bytes_max, self.batch_bytes_max) + GRPC_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Timing:
    """Delays in seconds."""

    heartbeat_s: float = 0.1  # between two brokers, for all groups that they share
    gone_after_s: float = 0.6  # silence after which a broker counts as gone; up to 2.5 times as long if it is slow
    election_min_s: float = 0.15  # after the loss of a leader: a random wait between these two
    election_max_s: float = 0.45
    sync_hang_s: float = 1.0  # a leader whose sync takes longer transfers its leadership
    bulk_stalled_s: float = 2.0  # a bulk connection without acks for this long is opened again
    idle_mark_s: float = 0.1  # durability marks are synced after this much idle time
    registration_lease_s: float = 10.0  # a broker that stops renewing is unregistered after this
    registration_renew_s: float = 2.0
    command_timeout_s: float = 10.0  # of a registry command, forwarding and retries included
    produce_timeout_s: float = 30.0  # of a produce request whose client gives no timeout
    fetch_wait_s_max: float = 30.0
    transfer_timeout_s: float = 5.0  # at most, for transferring leaderships at a clean stop
    leader_return_s: float = 10.0  # a preferred broker leads again after it has been alive for this long
    join_s: float = 10.0  # a broker that is not a voter looks for its cluster for this long
    retention_check_s: float = 5.0  # between two checks for records that are due to go
    connection_age_s_max: float = 3600.0  # of a connection with TLS; then both ends make another one
    drain_s: float = 2.0  # at most, for ending its registration at a clean stop

    def __post_init__(self) -> None:
        for f in fields(self):
            delay_s = getattr(self, f.name)
            _require(0 < delay_s <= DELAY_S_MAX, f"{f.name} must be above 0, and at most {DELAY_S_MAX:.0f}")
        _require(self.heartbeat_s * 3 <= self.gone_after_s + 1e-9, "gone_after_s must be at least three heartbeats")
        _require(self.election_min_s < self.election_max_s, "election_min_s must be below election_max_s")
        _require(
            self.registration_renew_s * 2 <= self.registration_lease_s,
            "registration_lease_s must be at least two renewals",
        )


def parse_address(text: str) -> tuple[str, int]:
    """ "host:port" or "[v6]:port" as (host, port). Raises InvalidConfig."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not _HOST.fullmatch(host) or not 0 <= _number(port) <= 65535:
        raise InvalidConfig(f"{text[:300]!r} is not an address", hint="write host:port, such as 127.0.0.1:7070")
    return host, int(port)


def _number(digits: str) -> int:
    """Up to ten ASCII digits as a number. Returns -1 for any other text."""
    return int(digits) if len(digits) <= 10 and digits.isascii() and digits.isdigit() else -1


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Of names, only localhost counts: no name is looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def parse_peer(text: str, what: str = "a voter") -> PeerAddress:
    """ "1@host:port" as a PeerAddress; `what` names it in the error. Raises InvalidConfig."""
    number, at, address = text.partition("@")
    if not at or not 1 <= _number(number) < 1 << 32:
        raise InvalidConfig(f"{text[:300]!r} is not {what}", hint="write id@host:port, such as 1@127.0.0.1:7170")
    host, port = parse_address(address)
    return PeerAddress(int(number), host, port)


SECURITY = ("off", "accept", "required")


@dataclass(frozen=True, slots=True)
class ZookeeperUrl:
    """The place of a registry in ZooKeeper, and the user who reads and writes it (digest; "": no user)."""

    servers: tuple[str, ...]  # host:port
    chroot: str
    user: str = ""
    password: str = field(default="", repr=False)


def parse_zookeeper(text: str) -> ZookeeperUrl:
    """ "zookeeper://[user:password@]host:port[,host:port…][/chroot]" as a value. Raises InvalidConfig."""
    login, at, place = text.removeprefix(ZOOKEEPER).rpartition("@")
    user, colon, password = login.partition(":")
    servers, slash, chroot = place.partition("/")
    try:
        for server in servers.split(","):
            parse_address(server)
            _require(parse_address(server)[1] > 0, f"{server} has no port")
        _require(not at or bool(user and colon and password), "the text before the @ is not user:password")
        allowed = _CHROOT.fullmatch(slash + chroot) and chroot.partition("/")[0] != "zookeeper"  # ZooKeeper's own nodes
        _require(not chroot or bool(allowed), f"{slash + chroot[:300]!r} is not a path to use")
    except InvalidConfig as error:  # the message never shows the text before the @, which is a password
        hint = "write zookeeper://host:port,host:port/chroot, such as zookeeper://127.0.0.1:2181/tinymq"
        raise InvalidConfig(f"not the URL of a ZooKeeper: {error.message}", hint=hint) from None
    return ZookeeperUrl(tuple(servers.split(",")), slash + chroot if chroot else ZOOKEEPER_CHROOT, user, password)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The configuration of one broker. Port 0 binds any free port. The defaults listen on loopback only."""

    broker_id: int
    data_dir: str
    voters: tuple[PeerAddress, ...]  # of the metadata group: 1, 3 or 5, this broker included; or none
    secret: bytes = field(repr=False)  # shared by all brokers of a cluster
    join: tuple[str, ...] = ()  # peer addresses of running brokers, for a broker that is not a voter
    listen: str = "127.0.0.1:0"  # clients
    stream_listen: str = "127.0.0.1:0"  # clients' streams of records, as frames over TCP; "": over `listen`
    peer_listen: str = "127.0.0.1:0"  # other brokers
    advertise: str = ""  # the address for clients, if it is not `listen`
    stream_advertise: str = ""  # the address for clients' streams, if it is not `stream_listen`
    peer_advertise: str = ""
    dial: tuple[PeerAddress, ...] = ()  # overrides the addresses at which this broker dials others
    forward: tuple[PeerAddress, ...] = ()  # overrides the addresses to which this broker forwards clients' calls
    metrics_listen: str = ""  # metrics over HTTP; "": none
    security: str = "off"  # TLS on every port: off, accept (with and without), required (tinymq/app/broker_tls.py)
    tls_dir: str = ""  # of this broker's certificate: ca.crt, tls.crt, tls.key
    client_certificates: bool = False  # a client has to show a certificate, not only the broker
    access_required: bool = False  # check callers even if the registry does not require it, or is not known yet
    tokens_without_tls: bool = False  # take users' tokens from other machines over connections that others can read
    audit_dir: str = ""  # of the audit log; "": audit/ in the data directory
    rack: str = ""
    auto_create_topics: bool = False  # a topic is made when a client first sends to it, or reads it
    default_partitions: int = 6  # of such a topic
    registry: str = field(default="replicated", repr=False)  # tinymq/registry/factory.py; its URL may have a password
    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)
    jwt: IssuerConfig = field(default_factory=IssuerConfig)  # whose JSON Web Tokens count, too

    def __post_init__(self) -> None:
        _require(1 <= self.broker_id < 1 << 32, f"broker_id {self.broker_id} is not between 1 and {(1 << 32) - 1}")
        _require(bool(self.data_dir), "data_dir is empty")
        _require("\0" not in self.data_dir, "data_dir is no path")
        _require(len(self.secret) >= SECRET_BYTES_MIN, f"the secret has fewer than {SECRET_BYTES_MIN} bytes")
        _require(1 <= self.default_partitions <= 1024, f"default_partitions {self.default_partitions} is not 1 to 1024")
        self._check_place()
        self._check_tls()
        _check_elsewhere("dial", self.dial, self.broker_id)
        _check_elsewhere("forward", self.forward, self.broker_id)
        if self.registry.startswith(ZOOKEEPER):
            parse_zookeeper(self.registry)
        elif self.registry not in ("replicated", "memory") and not SCHEME.match(self.registry):
            hint = f"it is 'replicated', 'memory', {ZOOKEEPER}host:port,host:port/chroot, or the URL of a plug-in"
            raise InvalidConfig(f"registry is {self.registry[:300]!r}", hint=hint)
        if self.registry == "memory" and not self.voters:
            hint = f"make the broker its own only voter: --voter {self.broker_id}@host:port"
            raise InvalidConfig("a registry in memory, and no voter", hint=hint)
        if self.registry == "memory" and len(self.voters) > 1:
            hint = "brokers of one cluster share a registry: use 'replicated'"
            raise InvalidConfig("a registry in memory with more than one broker", hint=hint)
        listens = self.listen, self.stream_listen, self.peer_listen, self.metrics_listen
        for text in (*listens, self.advertise, self.stream_advertise, self.peer_advertise):
            if text:
                parse_address(text)

    def _check_tls(self) -> None:
        _require(self.security in SECURITY, f"security is {self.security[:300]!r}: it is {', '.join(SECURITY)}")
        if self.security != "off" and not self.tls_dir:
            hint = "set tls_dir to a directory that tinymq cert broker has written"
            raise InvalidConfig(f"security is {self.security!r} without certificates", hint=hint)
        if self.client_certificates and self.security != "required":
            hint = 'set security = "required": a client without TLS shows no certificate'
            raise InvalidConfig("client_certificates are required, and TLS is not", hint=hint)

    def _check_place(self) -> None:
        """Check `voters` and `join`. A voter names all voters, and a broker that joins names the brokers to ask.

        A broker that has joined needs neither, because its data directory has the addresses.
        """
        ids = [v.broker_id for v in self.voters]
        _require(not (ids and self.join), "voters and join exclude one another: a voter does not join")
        _require(len(ids) in (0, 1, 3, 5), f"the metadata group has 1, 3 or 5 voters, not {len(ids)}")
        _require(len(set(ids)) == len(ids), "two voters have one broker id")
        if ids and self.broker_id not in ids:
            hint = "a broker beyond the voters has no list of them: start it with --join HOST:PORT"
            raise InvalidConfig(f"broker {self.broker_id} is not among the voters {ids}", hint=hint)
        _require(len(self.join) <= JOIN_MAX, f"join names more than {JOIN_MAX} addresses")
        for text in self.join:
            parse_address(text)
        if self.join and not self.peer_advertise and parse_address(self.peer_listen)[0] in ANY_HOST:
            hint = "set peer_advertise to the address at which other brokers reach this one"
            raise InvalidConfig(f"no broker can dial {self.peer_listen}", hint=hint)


def _check_elsewhere(name: str, peers: tuple[PeerAddress, ...], here: int) -> None:
    """Check overrides: each broker at most once, at an address that can be dialled. The brokers need not exist yet."""
    ids = [peer.broker_id for peer in peers]
    _require(len(ids) <= DIAL_MAX, f"{name} names more than {DIAL_MAX} brokers")
    twice = next((broker_id for broker_id in ids if ids.count(broker_id) > 1), None)
    _require(twice is None, f"{name} names broker {twice} more than once")
    if here in ids:
        hint = "leave it out; peer_advertise is the address at which the others dial it"
        raise InvalidConfig(f"broker {here} does not dial itself: {name}", hint=hint)
    for peer in peers:
        if peer.host in ANY_HOST or not peer.port:
            hint = "write id@host:port, such as 2@127.0.0.1:9001"
            raise InvalidConfig(f"no broker can dial {format_address(peer.host, peer.port)}: {name}", hint=hint)
