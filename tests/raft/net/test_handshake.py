"""The handshake lets in only authenticated brokers: a table of all faults, and replays of valid messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tinymq.base.errors import (
    Closed,
    Denied,
    InvalidFrame,
    NotReady,
    TinymqError,
    UnsupportedVersion,
    WrongBroker,
    WrongCluster,
    WrongSecret,
)
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import ANYBODY, Credentials, Handshake, HandshakeState, refusal
from tinymq.raft.net.transport import Channel, Invitation, PeerIdentity

ONE = Credentials(1, b"1" * 16, b"cluster", 11, b"the secret")
TWO = Credentials(2, b"2" * 16, b"cluster", 22, b"the secret")
NONCES = b"a" * 32, b"b" * 32


def dial(me: Credentials = ONE, to: int = 2, channel: Channel = Channel.BULK) -> Handshake:
    return Handshake.dial(me, to, channel, NONCES[0])


def accept(me: Credentials = TWO, nonce: bytes = NONCES[1]) -> Handshake:
    return Handshake.accept(me, nonce)


def message(data: bytes | None) -> bytes:
    assert data is not None
    return data


def altered(data: bytes | None, **fields: object) -> bytes:
    hello = peer_pb2.Hello.FromString(message(data))
    for name, value in fields.items():
        setattr(hello, name, value)
    return hello.SerializeToString()


def test_both_ends_open_and_know_each_other() -> None:
    dialer, acceptor = dial(), accept()
    hello = acceptor.receive(message(dialer.first_message))
    proof = dialer.receive(message(hello))
    assert dialer.state is HandshakeState.OPEN
    assert acceptor.state is HandshakeState.AWAIT_PROOF
    assert acceptor.receive(message(proof)) is None
    assert acceptor.state is HandshakeState.OPEN
    assert dialer.peer == PeerIdentity(2, b"2" * 16, 22, KNOWN_LEVEL)
    assert acceptor.peer == PeerIdentity(1, b"1" * 16, 11, KNOWN_LEVEL)
    assert acceptor.channel is Channel.BULK
    assert (dialer.version, acceptor.version) == (KNOWN_LEVEL, KNOWN_LEVEL)


@pytest.mark.parametrize(
    ("dialer", "acceptor", "error"),
    [
        (replace(ONE, cluster_id=b"another"), TWO, WrongCluster),
        (ONE, replace(TWO, cluster_id=b""), NotReady),
        (ONE, replace(TWO, broker_id=3), WrongBroker),
        (replace(ONE, broker_id=2), TWO, WrongBroker),  # a copied data directory
        (replace(ONE, broker_id=0), TWO, WrongBroker),
        (replace(ONE, protocol_min=8, protocol_max=9), TWO, UnsupportedVersion),
        (ONE, replace(TWO, protocol_min=8, protocol_max=9), UnsupportedVersion),
        (replace(ONE, incarnation=b"short"), TWO, InvalidFrame),
    ],
)
def test_the_acceptor_refuses_and_says_why(
    dialer: Credentials, acceptor: Credentials, error: type[TinymqError]
) -> None:
    one, two = dial(dialer), accept(acceptor)
    with pytest.raises(error) as raised:
        two.receive(message(one.first_message))
    assert two.state is HandshakeState.FAILED
    with pytest.raises(error, match="the peer refuses") as invitation:
        one.receive(message(two.farewell))
    assert raised.value.message in invitation.value.message
    assert one.state is HandshakeState.FAILED


NOBODY = replace(ONE, cluster_id=b"")
FIRST = b"the first entry"
VOTERS = (PeerAddress(2, "two.example", 7170), PeerAddress(3, "::1", 7171))


def welcome(dialer: Handshake, acceptor: Handshake) -> bytes:
    """Return all messages of a handshake, up to the acceptor's answer to the proof."""
    hello = acceptor.receive(message(dialer.first_message))
    return message(acceptor.receive(message(dialer.receive(message(hello)))))


def invites(acceptor: Credentials = TWO) -> Handshake:
    return Handshake.accept(
        acceptor, NONCES[1], lambda who: Invitation(acceptor.cluster_id, FIRST + who.incarnation, VOTERS)
    )


def test_a_broker_without_a_cluster_learns_the_cluster() -> None:
    dialer, acceptor = dial(NOBODY), invites()
    message = welcome(dialer, acceptor)
    assert dialer.state is HandshakeState.AWAIT_WELCOME
    assert dialer.receive(message) is None
    assert dialer.state is acceptor.state is HandshakeState.WELCOMED
    assert dialer.invitation == Invitation(b"cluster", FIRST + b"1" * 16)
    assert isinstance(acceptor.silence(), Closed)
    with pytest.raises(InvalidFrame):
        acceptor.receive(peer_pb2.Peer().SerializeToString())


def test_nothing_is_disclosed_before_the_secret_is_proven() -> None:
    asked: list[PeerIdentity] = []
    acceptor = Handshake.accept(TWO, NONCES[1], lambda who: asked.append(who) or Invitation(b"", FIRST))  # type: ignore[func-returns-value]
    acceptor.receive(message(dial(NOBODY).first_message))
    with pytest.raises(WrongSecret):
        acceptor.receive(peer_pb2.Proof(proof=b"x" * 32).SerializeToString())
    assert asked == []
    with pytest.raises(WrongSecret):
        welcome(dial(replace(NOBODY, secret=b"another")), invites())


@pytest.mark.parametrize("change", [{"first_entry": b"another"}, {"proof": b"p" * 32}, {"proof": b""}])
def test_a_changed_welcome_is_refused(change: dict[str, object]) -> None:
    dialer = dial(NOBODY)
    message = peer_pb2.Welcome.FromString(welcome(dialer, invites()))
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(WrongSecret):
        dialer.receive(message.SerializeToString())
    assert dialer.invitation is None


def test_a_recorded_welcome_is_worthless() -> None:
    message = welcome(dial(NOBODY), invites())
    again = Handshake.dial(NOBODY, 2, Channel.BULK, b"d" * 32)
    welcome(again, invites())
    with pytest.raises(WrongSecret):
        again.receive(message)


def whoever(credentials: Credentials = NOBODY) -> Handshake:
    return Handshake.dial(credentials, ANYBODY, Channel.CONTROL, b"d" * 32)


def test_a_new_broker_asks_any_listener_and_learns_the_voters() -> None:
    dialer = whoever()
    dialer.receive(welcome(dialer, invites()))
    assert dialer.invitation == Invitation(b"cluster", FIRST + b"1" * 16, VOTERS)


@pytest.mark.parametrize(
    "change", [{"first_entry": b"another"}, {"voters": ["9@evil:1"]}, {"voters": []}, {"proof": b"p" * 32}]
)
def test_a_changed_cluster_answer_is_refused(change: dict[str, object]) -> None:
    dialer = whoever()
    message = peer_pb2.Welcome.FromString(welcome(dialer, invites()))
    for name, value in change.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(peer_pb2.Welcome(**{name: value}))  # type: ignore[arg-type]
    with pytest.raises(WrongSecret):
        dialer.receive(message.SerializeToString())
    assert dialer.invitation is None


def test_fields_cannot_be_moved_between_messages() -> None:
    dialer = whoever()
    message = peer_pb2.Welcome.FromString(welcome(dialer, invites()))
    moved = peer_pb2.Welcome(first_entry=message.first_entry + message.voters[0].encode(), voters=message.voters[1:])
    moved.proof = message.proof
    with pytest.raises(WrongSecret):
        dialer.receive(moved.SerializeToString())


def test_asking_any_listener_opens_no_connection() -> None:
    hello = whoever().first_message
    claim = peer_pb2.Hello.FromString(message(hello))
    claim.cluster_id = TWO.cluster_id
    with pytest.raises(WrongBroker):
        accept(TWO).receive(claim.SerializeToString())


def test_a_listener_without_the_secret_is_not_believed() -> None:
    dialer, acceptor = whoever(), invites(replace(TWO, secret=b"another"))
    with pytest.raises(WrongSecret, match="broker 2 does not prove"):
        welcome(dialer, acceptor)


def test_an_acceptor_may_refuse_to_tell() -> None:
    def refuse(who: PeerIdentity) -> Invitation:
        raise WrongBroker(f"{who.broker_id} is no member")

    dialer, acceptor = dial(NOBODY), Handshake.accept(TWO, NONCES[1], refuse)
    with pytest.raises(WrongBroker):
        welcome(dialer, acceptor)
    with pytest.raises(WrongBroker, match="the peer refuses: 1 is no member"):
        dialer.receive(message(acceptor.farewell))
    assert acceptor.state is dialer.state is HandshakeState.FAILED


def test_brokers_without_a_cluster_share_no_cluster() -> None:
    nobody = replace(TWO, cluster_id=b"")
    with pytest.raises(NotReady):
        invites(nobody).receive(message(dial(NOBODY).first_message))
    dialer, acceptor = dial(NOBODY), invites()
    hello = acceptor.receive(message(dialer.first_message))
    with pytest.raises(NotReady):
        dialer.receive(altered(hello, cluster_id=b""))


def test_a_cluster_member_accepts_no_answer_without_a_cluster() -> None:
    dialer, acceptor = dial(), accept()
    hello = acceptor.receive(message(dialer.first_message))
    with pytest.raises(WrongCluster):
        dialer.receive(altered(hello, cluster_id=b""))


@pytest.mark.parametrize("cluster_id", [b"cluster", b""], ids=["of the cluster", "joining it"])
def test_an_older_build_is_told_to_upgrade(cluster_id: bytes) -> None:
    old, new = replace(ONE, protocol_max=1, cluster_id=cluster_id), replace(TWO, protocol_min=2, protocol_max=2)
    dialer, acceptor = dial(old), accept(new)
    with pytest.raises(UnsupportedVersion, match="broker 1 knows feature level 1, and this cluster is at 2") as here:
        acceptor.receive(message(dialer.first_message))
    assert "install a newer tinymq on broker 1" in str(here.value)
    with pytest.raises(UnsupportedVersion, match="broker 1 knows feature level 1, and this cluster is at 2"):
        dialer.receive(message(acceptor.farewell))


def test_an_older_build_notices_that_it_is_too_old() -> None:
    """The acceptor refuses a dialer whose cluster has a feature level that the acceptor does not know."""
    dialer, acceptor = dial(replace(ONE, protocol_min=3, protocol_max=3)), accept(replace(TWO, protocol_max=2))
    with pytest.raises(UnsupportedVersion, match="broker 2 knows feature level 2, and this cluster is at 3"):
        acceptor.receive(message(dialer.first_message))


def test_versions_that_overlap_meet_at_the_highest_common_one() -> None:
    dialer, acceptor = dial(replace(ONE, protocol_max=3)), accept(replace(TWO, protocol_max=2))
    proof = dialer.receive(message(acceptor.receive(message(dialer.first_message))))
    acceptor.receive(message(proof))
    assert (dialer.version, acceptor.version) == (2, 2)


def test_a_dialer_with_another_secret_notices_and_discloses_nothing() -> None:
    dialer, acceptor = dial(replace(ONE, secret=b"another")), accept()
    hello = acceptor.receive(message(dialer.first_message))
    with pytest.raises(WrongSecret):
        dialer.receive(message(hello))
    assert dialer.farewell is None
    assert isinstance(acceptor.silence(), WrongSecret)


HELLO_CHANGES: list[dict[str, object]] = [
    {"protocol_max": 9},
    {"incarnation": b"x" * 16},
    {"session": 99},
    {"nonce": b"n" * 32},
    {"proof": b"p" * 32},
    {"proof": b""},
    {"to_broker_id": 7},
    {"channel": 0},
]


@pytest.mark.parametrize("change", HELLO_CHANGES, ids=lambda c: next(iter(c)))
def test_a_changed_hello_of_the_acceptor_is_refused(change: dict[str, object]) -> None:
    dialer, acceptor = dial(), accept()
    hello = acceptor.receive(message(dialer.first_message))
    with pytest.raises(WrongSecret):
        dialer.receive(altered(hello, **change))


@pytest.mark.parametrize("change", [c for c in HELLO_CHANGES if "proof" not in c and "to_broker_id" not in c])
def test_a_changed_hello_of_the_dialer_is_refused(change: dict[str, object]) -> None:
    dialer, acceptor = dial(), accept()
    hello = acceptor.receive(altered(dialer.first_message, **change))
    with pytest.raises(WrongSecret):
        dialer.receive(message(hello))


def test_a_recorded_handshake_opens_nothing() -> None:
    dialer, acceptor = dial(), accept()
    first = message(dialer.first_message)
    answer = message(acceptor.receive(first))
    proof = message(dialer.receive(answer))
    again = accept(nonce=b"c" * 32)
    again.receive(first)
    with pytest.raises(WrongSecret):
        again.receive(proof)
    assert again.state is HandshakeState.FAILED
    assert again.farewell is not None
    other_dialer = Handshake.dial(ONE, 2, Channel.BULK, b"d" * 32)
    with pytest.raises(WrongSecret):
        other_dialer.receive(answer)


def test_the_late_refusal_reaches_a_dialer_that_is_open() -> None:
    dialer, acceptor = dial(), accept()
    dialer.receive(message(acceptor.receive(message(dialer.first_message))))
    with pytest.raises(WrongSecret):
        acceptor.receive(peer_pb2.Proof(proof=b"x" * 32).SerializeToString())
    with pytest.raises(WrongSecret, match="the peer refuses"):
        dialer.receive(message(acceptor.farewell))


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    """Broker 1 dials an attacker at broker 2's address. The attacker has no secret, and dials broker 1 to get the
    proof.
    """
    dialer, listener = dial(ONE), accept(ONE)
    first = message(dialer.first_message)
    as_two = altered(first, broker_id=2, to_broker_id=1)
    answer = message(listener.receive(as_two))
    with pytest.raises(WrongBroker):
        dialer.receive(answer)
    with pytest.raises(WrongSecret):
        dial(ONE).receive(altered(answer, broker_id=2))


def test_our_own_nonce_is_refused() -> None:
    dialer = dial()
    with pytest.raises(WrongSecret, match="our own nonce"):
        accept(nonce=NONCES[0]).receive(message(dialer.first_message))


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"GET / HTTP/1.1\r\n", bytes(4096)])
@pytest.mark.parametrize("make", [dial, accept])
def test_garbage_is_refused(make: Callable[[], Handshake], garbage: bytes) -> None:
    shake = make()
    with pytest.raises((InvalidFrame, UnsupportedVersion)):  # an empty Hello names no version
        shake.receive(garbage)
    assert shake.state is HandshakeState.FAILED


def test_garbage_instead_of_a_proof() -> None:
    acceptor = accept()
    acceptor.receive(message(dial().first_message))
    with pytest.raises((InvalidFrame, WrongSecret)):
        acceptor.receive(b"\xff" * 40)


@pytest.mark.parametrize("change", [{"nonce": b""}, {"nonce": b"n" * 31}, {"channel": 2}, {"incarnation": b""}])
def test_a_hello_that_lacks_something_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidFrame):
        accept().receive(altered(dial().first_message, **change))


def test_a_refusal_is_not_expected_by_an_acceptor_nor_a_hello_after_the_end() -> None:
    with pytest.raises(InvalidFrame, match="REFUSAL while AWAIT_HELLO"):
        accept().receive(refusal(WrongSecret("no")))
    dialer, acceptor = dial(), accept()
    hello = message(acceptor.receive(message(dialer.first_message)))
    dialer.receive(hello)
    with pytest.raises(InvalidFrame, match="HELLO while OPEN"):
        dialer.receive(hello)
    with pytest.raises(InvalidFrame, match="while FAILED"):
        dialer.receive(hello)


def test_only_expected_codes_are_accepted_and_reasons_are_made_printable() -> None:
    message = peer_pb2.Hello(refused="DiskFull", reason="\x1b[31mred" + "x" * 1000).SerializeToString()
    with pytest.raises(Denied) as invitation:
        dial().receive(message)
    assert type(invitation.value) is Denied
    assert "\x1b" not in invitation.value.message
    assert len(invitation.value.message) < 300


def test_repr_shows_no_secret() -> None:
    assert "the secret" not in repr(ONE)
