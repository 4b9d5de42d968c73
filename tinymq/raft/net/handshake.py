"""The handshake, which proves the peer's identity: a sans-I/O state machine for both roles. Messages in, answers out.

    dialer                                        acceptor
    Hello(nonce a) ────────────────────────────▶  AWAIT_HELLO
    AWAIT_ANSWER   ◀──────────────────────────── Hello(nonce b, proof over both Hellos, role acceptor)
    Proof(over both Hellos, role dialer) ──────▶  AWAIT_PROOF
    OPEN                                          OPEN

A broker without a cluster dials to learn its peers' cluster, and nothing else:

    Hello(nonce a, no cluster) ────────────────▶  AWAIT_HELLO
    AWAIT_ANSWER   ◀──────────────────────────── Hello(nonce b, proof over both Hellos, role acceptor)
    Proof(over both Hellos, role dialer) ──────▶  AWAIT_PROOF
    AWAIT_WELCOME  ◀──────────────────────────── Welcome(first entry, proof over it and both Hellos)
    WELCOMED                                      WELCOMED

A broker that knows no broker id dials an address with to_broker_id 0 instead, and learns the voters, too.

Each side proves the shared secret over all that both Hellos say of their senders, its role's label first: fresh
nonces make a recorded handshake worthless, labels keep a proof from being sent back to its maker, and
the acceptor proves first, so a stranger that answers a dialer gets no proof from it. A side that fails
gets a code and a reason. Both are only hints, because nothing is proven before OPEN.

The range of protocols in a Hello is a range of feature levels (tinymq/format/feature_level.py): from the cluster's
level, as the sender knows it, to the highest level that the sender's build knows. A broker that does not know the
cluster's level is refused.

This module decides which brokers may connect. It knows no sockets, deadlines or frames.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from enum import Enum, auto

from google.protobuf.message import DecodeError

from tinymq.base.config import format_address, parse_peer
from tinymq.base.errors import (
    BY_CODE,
    BrokerUnreachable,
    Closed,
    Denied,
    InvalidConfig,
    InvalidFrame,
    NotReady,
    QuotaExceeded,
    TinymqError,
    UnsupportedVersion,
    WrongBroker,
    WrongCluster,
    WrongSecret,
)
from tinymq.format.feature_level import FIRST_LEVEL, KNOWN_LEVEL, check_member
from tinymq.proto import peer_pb2
from tinymq.raft.net.transport import Admit, Channel, Invitation, Invite, PeerIdentity

FRAME_BYTES_MAX = 4096  # of a handshake message: the most that a stranger can make us buffer
NONCE_BYTES = 32
INCARNATION_BYTES = 16
REASON_LENGTH_MAX = 200

_DIALER_LABEL = b"tinymq peer dialer v1"
_ACCEPTOR_LABEL = b"tinymq peer acceptor v1"
_WELCOME_LABEL = b"tinymq peer welcome v1"
_VOTERS_LABEL = b"tinymq peer welcome with voters v1"
ANYBODY = 0  # to_broker_id of a dialer that does not know which broker listens
_NUMBERS = struct.Struct("<IIIQIIIII")
_REFUSALS = (
    WrongCluster, WrongBroker, WrongSecret, UnsupportedVersion, NotReady, InvalidFrame, QuotaExceeded, InvalidConfig,
)  # fmt: skip


class HandshakeState(Enum):
    """The state of a handshake."""

    AWAIT_HELLO = auto()  # acceptor, from the start
    AWAIT_ANSWER = auto()  # dialer, once its Hello is sent
    AWAIT_PROOF = auto()  # acceptor, once its own Hello is sent
    AWAIT_WELCOME = auto()  # dialer without a cluster, once its proof is sent
    OPEN = auto()
    WELCOMED = auto()  # the dialer knows what to join; the connection has done its work
    FAILED = auto()


class Received(Enum):
    """The meaning of a message to its receiver."""

    HELLO = auto()
    PROOF = auto()
    WELCOME = auto()
    REFUSAL = auto()


# An acceptor may still refuse when the dialer is OPEN already: the dialer proves last.
NEXT = {
    (HandshakeState.AWAIT_HELLO, Received.HELLO): HandshakeState.AWAIT_PROOF,
    (HandshakeState.AWAIT_ANSWER, Received.HELLO): HandshakeState.OPEN,
    (HandshakeState.AWAIT_ANSWER, Received.REFUSAL): HandshakeState.FAILED,
    (HandshakeState.AWAIT_PROOF, Received.PROOF): HandshakeState.OPEN,
    (HandshakeState.OPEN, Received.REFUSAL): HandshakeState.FAILED,
}
NEXT_JOINING = {  # when the dialer belongs to no cluster
    (HandshakeState.AWAIT_ANSWER, Received.HELLO): HandshakeState.AWAIT_WELCOME,
    (HandshakeState.AWAIT_ANSWER, Received.REFUSAL): HandshakeState.FAILED,
    (HandshakeState.AWAIT_PROOF, Received.PROOF): HandshakeState.WELCOMED,
    (HandshakeState.AWAIT_WELCOME, Received.WELCOME): HandshakeState.WELCOMED,
    (HandshakeState.AWAIT_WELCOME, Received.REFUSAL): HandshakeState.FAILED,
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity of one side, and the secret that it proves to know."""

    broker_id: int
    incarnation: bytes
    cluster_id: bytes  # empty: it belongs to no cluster, refuses every dialer, and dials to learn of a cluster
    session: int
    secret: bytes = field(repr=False)
    protocol_min: int = FIRST_LEVEL  # the cluster's feature level, as known here: a peer that knows less is refused
    protocol_max: int = KNOWN_LEVEL  # the feature level that this build knows

    def hello(self, nonce: bytes, channel: Channel, to_broker_id: int) -> peer_pb2.Hello:
        """Return our Hello, without a proof."""
        return peer_pb2.Hello(
            protocol_min=self.protocol_min,
            protocol_max=self.protocol_max,
            cluster_id=self.cluster_id,
            broker_id=self.broker_id,
            incarnation=self.incarnation,
            session=self.session,
            channel=channel,
            nonce=nonce,
            to_broker_id=to_broker_id,
        )


def refusal(error: TinymqError) -> bytes:
    """Make the message that tells the other side why it is refused."""
    return peer_pb2.Hello(refused=error.code, reason=error.message[:REASON_LENGTH_MAX]).SerializeToString()


def _transcript(hello: peer_pb2.Hello) -> bytes:
    """Return what the proof covers: all fields up to `to_broker_id`, with lengths, so that it has one reading.

    It covers neither the proof itself, nor `refused` and `reason`. A Hello with `refused` is never taken for a proof,
    and without `refused`, `reason` is not read.
    """
    numbers = _NUMBERS.pack(
        hello.protocol_min, hello.protocol_max, hello.broker_id, hello.session, hello.channel, hello.to_broker_id,
        len(hello.cluster_id), len(hello.incarnation), len(hello.nonce),
    )  # fmt: skip
    return numbers + hello.cluster_id + hello.incarnation + hello.nonce


def _prove(secret: bytes, label: bytes, dialer: peer_pb2.Hello, acceptor: peer_pb2.Hello) -> bytes:
    return hmac.digest(secret, label + _transcript(dialer) + _transcript(acceptor), hashlib.sha256)


def _prove_welcome(secret: bytes, dialer: peer_pb2.Hello, acceptor: peer_pb2.Hello, welcome: peer_pb2.Welcome) -> bytes:
    transcript = _transcript(dialer) + _transcript(acceptor)
    if dialer.to_broker_id != ANYBODY:
        return hmac.digest(secret, _WELCOME_LABEL + transcript + welcome.first_entry, hashlib.sha256)
    parts = [welcome.first_entry, *(voter.encode() for voter in welcome.voters)]
    transcript += b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.digest(secret, _VOTERS_LABEL + transcript, hashlib.sha256)


def _parse_hello(message: bytes) -> peer_pb2.Hello:
    try:
        return peer_pb2.Hello.FromString(message)
    except DecodeError:
        raise InvalidFrame("not a Hello of the protocol between brokers") from None


def _parse_welcome(message: bytes) -> peer_pb2.Welcome:
    try:
        return peer_pb2.Welcome.FromString(message)
    except DecodeError:
        raise InvalidFrame("not a Welcome of the protocol between brokers") from None


def _said_refusal(hello: peer_pb2.Hello | peer_pb2.Welcome) -> TinymqError:
    """Turn the other side's refusal into our error. Nothing proves it, so only expected codes are believed."""
    kind = BY_CODE.get(hello.refused, Denied)
    reason = "".join(c if c.isprintable() else "?" for c in hello.reason[:REASON_LENGTH_MAX])
    return (kind if kind in _REFUSALS else Denied)(f"the peer refuses: {reason or hello.refused}")


class Handshake:
    """One handshake of one connection. Make it with `dial` or `accept`; feed `receive` until OPEN or WELCOMED.

    Any TinymqError from `receive` is final: send `farewell`, when there is one, and close.
    """

    def __init__(
        self, credentials: Credentials, state: HandshakeState, nonce: bytes, invite: Invite | None = None,
        admit: Admit | None = None,
    ) -> None:  # fmt: skip
        assert len(nonce) == NONCE_BYTES
        self.state = state
        self.dialer = state is HandshakeState.AWAIT_ANSWER
        self.peer: PeerIdentity | None = None  # invariant: proven when OPEN, a mere claim before
        self.channel = Channel.CONTROL
        self.version = 0  # of the protocol, spoken from OPEN on
        self.farewell: bytes | None = None
        self.joining = False  # the dialer belongs to no cluster
        self.certified_broker: int | None = None  # by TLS: the broker of the peer's certificate; 0: of no broker
        self.invitation: Invitation | None = None  # the dialer's, proven, once WELCOMED
        self._me = credentials
        self._invite = invite
        self._admit = admit
        self._nonce = nonce
        self._dialer_hello = peer_pb2.Hello()
        self._acceptor_hello = peer_pb2.Hello()

    @classmethod
    def dial(cls, credentials: Credentials, to_broker_id: int, channel: Channel, nonce: bytes) -> Handshake:
        """Begin as the dialer, which expects to reach `to_broker_id` (ANYBODY: only without a cluster).

        Send `first_message` first.
        """
        assert to_broker_id != ANYBODY or not credentials.cluster_id
        shake = cls(credentials, HandshakeState.AWAIT_ANSWER, nonce)
        shake.joining = not credentials.cluster_id
        shake.channel = channel
        shake._dialer_hello = credentials.hello(nonce, channel, to_broker_id)
        return shake

    @classmethod
    def accept(
        cls, credentials: Credentials, nonce: bytes, invite: Invite | None = None, admit: Admit | None = None
    ) -> Handshake:
        """Begin as the acceptor. The dialer chooses the channel.

        `invite`: what to tell a dialer without a cluster. `admit` raises the reason why a dialer with this identity,
        which it claims to have, is refused; it is not asked about dialers without a cluster.
        """
        return cls(credentials, HandshakeState.AWAIT_HELLO, nonce, invite, admit)

    @property
    def first_message(self) -> bytes | None:
        """The message to send before anything is received: the dialer's Hello. None: the acceptor waits."""
        return self._dialer_hello.SerializeToString() if self.state is HandshakeState.AWAIT_ANSWER else None

    def receive(self, message: bytes) -> bytes | None:
        """Take the other side's next message. Return the answer to send, or None. Raises the reason of a refusal."""
        state = self.state
        self.state = HandshakeState.FAILED  # until everything has been checked
        if state is HandshakeState.AWAIT_PROOF:
            self._check_proof(message)
            answer = self._welcome() if self.joining else None
            received = Received.PROOF
        elif state is HandshakeState.AWAIT_WELCOME:
            answer, received = None, Received.WELCOME
            self._take_welcome(_parse_welcome(message))
        else:
            hello = _parse_hello(message)
            received = Received.REFUSAL if hello.refused else Received.HELLO
            if (state, received) not in NEXT:
                raise InvalidFrame(f"unexpected {received.name} while {state.name}")
            if received is Received.REFUSAL:
                raise _said_refusal(hello)
            answer = self._answer(hello) if state is HandshakeState.AWAIT_HELLO else self._conclude(hello)
        self.state = (NEXT_JOINING if self.joining and state is not HandshakeState.AWAIT_HELLO else NEXT)[
            state, received
        ]
        return answer

    def silence(self) -> TinymqError:
        """Return the error for a peer that closed instead of answering."""
        if self.state is HandshakeState.AWAIT_PROOF:
            return WrongSecret("the peer closed instead of proving the secret: its own is probably another")
        if self.state is HandshakeState.AWAIT_ANSWER and self.certified_broker is not None:
            hint = "its log names the reason, such as an authority that it does not know"
            return BrokerUnreachable("the peer closed after TLS's handshake: it refuses our certificate", hint=hint)
        if self.state is HandshakeState.WELCOMED:
            return Closed("it was told which cluster to join")
        return InvalidFrame("the peer closed in the middle of the handshake")

    def _answer(self, hello: peer_pb2.Hello) -> bytes:
        self._dialer_hello = hello
        try:
            self._check(hello)
            if hello.to_broker_id not in ((self._me.broker_id, ANYBODY) if self.joining else (self._me.broker_id,)):
                raise WrongBroker(f"this is broker {self._me.broker_id}, not {hello.to_broker_id}")
            if self._admit is not None and not self.joining:
                assert self.peer is not None
                self._admit(self.peer)  # before anything is proven, so that the dialer is not OPEN yet
        except TinymqError as error:
            self.farewell = refusal(error)
            raise
        answer = self._me.hello(self._nonce, self.channel, hello.broker_id)
        answer.proof = _prove(self._me.secret, _ACCEPTOR_LABEL, hello, answer)
        self._acceptor_hello = answer
        return answer.SerializeToString()

    def _conclude(self, hello: peer_pb2.Hello) -> bytes:
        expected = self._dialer_hello.to_broker_id
        self._check(hello)
        if expected not in (ANYBODY, hello.broker_id):
            raise WrongBroker(f"broker {hello.broker_id} answers where broker {expected} was expected")
        if not hmac.compare_digest(hello.proof, _prove(self._me.secret, _ACCEPTOR_LABEL, self._dialer_hello, hello)):
            raise WrongSecret(f"broker {hello.broker_id} does not prove the secret of this cluster")
        self._acceptor_hello = hello
        proof = _prove(self._me.secret, _DIALER_LABEL, self._dialer_hello, hello)
        return peer_pb2.Proof(proof=proof).SerializeToString()

    def _welcome(self) -> bytes:
        """Send the cluster to the dialer, which has proven the secret."""
        assert self.peer is not None
        try:
            if self._invite is None:
                raise NotReady("this broker shares its cluster with no dialer")
            invitation = self._invite(self.peer)
        except TinymqError as error:
            self.farewell = refusal(error)
            raise
        welcome = peer_pb2.Welcome(first_entry=invitation.first_entry)
        if self._dialer_hello.to_broker_id == ANYBODY:
            welcome.voters.extend(f"{v.broker_id}@{format_address(v.host, v.port)}" for v in invitation.voters)
        welcome.proof = _prove_welcome(self._me.secret, self._dialer_hello, self._acceptor_hello, welcome)
        return welcome.SerializeToString()

    def _take_welcome(self, welcome: peer_pb2.Welcome) -> None:
        if welcome.refused:
            raise _said_refusal(welcome)
        expected = _prove_welcome(self._me.secret, self._dialer_hello, self._acceptor_hello, welcome)
        if not hmac.compare_digest(welcome.proof, expected):
            raise WrongSecret("the peer did not prove what it says about its cluster")
        try:
            voters = tuple(map(parse_peer, welcome.voters))
        except InvalidConfig as error:
            raise InvalidFrame(f"the peer names an invalid voter: {error.message}") from None
        self.invitation = Invitation(self._acceptor_hello.cluster_id, welcome.first_entry, voters)

    def _check_proof(self, message: bytes) -> None:
        expected = _prove(self._me.secret, _DIALER_LABEL, self._dialer_hello, self._acceptor_hello)
        try:
            proof = peer_pb2.Proof.FromString(message).proof
        except DecodeError:
            raise InvalidFrame("not a Proof of the protocol between brokers") from None
        if not hmac.compare_digest(proof, expected):
            error = WrongSecret(f"broker {self._dialer_hello.broker_id} does not prove the secret of this cluster")
            self.farewell = refusal(error)
            raise error

    def _check(self, hello: peer_pb2.Hello) -> None:
        """Check what both roles require of the other's Hello, and note what it claims."""
        me = self._me
        if not me.cluster_id and not (self.joining and hello.cluster_id):
            raise NotReady("this broker belongs to no cluster yet")
        if not self.dialer:
            self.joining = not hello.cluster_id
        version = min(hello.protocol_max, me.protocol_max)
        check_member(hello.broker_id, hello.protocol_max, me.protocol_min)
        check_member(me.broker_id, me.protocol_max, hello.protocol_min)
        if len(hello.nonce) != NONCE_BYTES or len(hello.incarnation) != INCARNATION_BYTES or hello.channel > 1:
            raise InvalidFrame("not a Hello of the protocol between brokers")
        if hello.nonce == self._nonce:
            raise WrongSecret("the peer sends our own nonce back")
        if not self.joining and hello.cluster_id != me.cluster_id:
            raise WrongCluster(f"the peer belongs to cluster {hello.cluster_id.hex()}, not {me.cluster_id.hex()}")
        if hello.broker_id in (0, me.broker_id):
            raise WrongBroker(f"the peer calls itself broker {hello.broker_id}; this is broker {me.broker_id}")
        if self.certified_broker not in (None, hello.broker_id):
            whose = f"broker {self.certified_broker}'s" if self.certified_broker else "no broker's"
            raise WrongBroker(f"the peer calls itself broker {hello.broker_id}, and its certificate is {whose}")
        self.version = version
        self.channel = Channel(hello.channel)
        self.peer = PeerIdentity(hello.broker_id, hello.incarnation, hello.session, hello.protocol_max)
