"""`dial` sets the addresses at which a broker connects to others, whatever they announce.

The tests put proxies there, and every connection passes one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster.test_address_book import VOTERS, Dialled, Registry
from tests.gateway.test_leader_calls import REPLY, Elsewhere, _never
from tinymq.app.settings import load
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import PeerAddress
from tinymq.broker.cluster.address_book import AddressBook
from tinymq.cli.verbs.broker import as_environment
from tinymq.gateway.call import Call
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

ELSEWHERE = (PeerAddress(2, "127.0.0.1", 9001), PeerAddress(4, "127.0.0.1", 9003))


def settings(tmp_path: Path, more: str = "") -> Path:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    path = tmp_path / "broker.toml"
    path.write_text(f"""
broker_id = 1
data_dir = "data"
voters = ["1@h:1", "2@h:2", "3@h:3"]
secret_file = "{secret}"
{more}
""")
    return path


def mesh() -> tuple[AddressBook, Dialled, Registry]:
    dialled, registry = Dialled(), Registry()
    return AddressBook(1, dialled, lambda broker_id: False, ELSEWHERE), dialled, registry


def test_a_file_and_options_set_the_dialled_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = settings(tmp_path, 'dial = ["2@127.0.0.1:9001", "4@[::1]:9003"]')
    assert load(path).dial == (PeerAddress(2, "127.0.0.1", 9001), PeerAddress(4, "::1", 9003))
    assert load(settings(tmp_path)).dial == ()
    for name, value in as_environment({"DIAL": ["3@127.0.0.1:9002"]}, "TINYMQ_").items():
        monkeypatch.setenv(name, value)
    assert load(path).dial == (PeerAddress(3, "127.0.0.1", 9002),)
    assert load(settings(tmp_path, 'forward = ["2@127.0.0.1:9011"]')).forward == (PeerAddress(2, "127.0.0.1", 9011),)


@pytest.mark.parametrize("setting", ["dial", "forward"])
@pytest.mark.parametrize(
    ("peers", "message", "hint"),
    [
        (["127.0.0.1:9001"], "'127.0.0.1:9001' is not a broker to dial", "id@host:port"),
        (["2@127.0.0.1"], "'127.0.0.1' is not an address", "host:port"),
        (["0@127.0.0.1:9001"], "is not a broker to dial", "id@host:port"),
        (["1@127.0.0.1:9001"], "broker 1 does not dial itself", "peer_advertise"),
        (["2@h:1", "3@h:2", "2@h:3"], "names broker 2 more than once", ""),
        (["2@0.0.0.0:9001"], "no broker can dial 0.0.0.0:9001", "id@host:port"),
        (["2@127.0.0.1:0"], "no broker can dial 127.0.0.1:0", "id@host:port"),
        ([f"{n}@h:1" for n in range(2, 259)], "more than 256 brokers", ""),
    ],
)
def test_wrong_addresses_are_refused(tmp_path: Path, setting: str, peers: list[str], message: str, hint: str) -> None:
    with pytest.raises(InvalidConfig) as wrong:
        load(settings(tmp_path, f"{setting} = {peers}"))
    assert message in wrong.value.message
    assert hint in wrong.value.hint


def test_an_error_names_a_misspelt_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as wrong:
        load(settings(tmp_path, "dials = []"))
    assert "'dial'" in wrong.value.hint


def test_voters_are_dialled_at_the_addresses_of_dial() -> None:
    here, dialled, _ = mesh()
    here.configure(VOTERS)
    assert dialled.peers == {2: "127.0.0.1:9001", 3: "10.0.0.1:7172"}
    assert here.voters == VOTERS, "who is let in is told where they are, not how this broker gets there"


def test_joining_brokers_are_dialled_there_whatever_they_and_the_registry_announce() -> None:
    here, dialled, registry = mesh()
    here.configure(VOTERS)
    here.follow(registry)  # type: ignore[arg-type]
    registry.register(4, "10.0.0.4:7170")
    registry.register(5, "10.0.0.5:7170")
    assert (dialled.peers[4], dialled.peers[5]) == ("127.0.0.1:9003", "10.0.0.5:7170")
    here.learn_address(4, "10.0.0.4:9999")
    assert dialled.peers[4] == "127.0.0.1:9003"


def test_a_broker_without_voters_dials_the_brokers_that_its_data_directory_names() -> None:
    dialled = Dialled()
    AddressBook(5, dialled, lambda broker_id: False, ELSEWHERE).learn(VOTERS)
    assert dialled.peers == {1: "10.0.0.1:7170", 2: "127.0.0.1:9001", 3: "10.0.0.1:7172"}


def test_dial_adds_no_broker() -> None:
    here, dialled, _ = mesh()
    here.configure(VOTERS)
    assert 4 not in dialled.peers


def test_brokers_forward_calls_to_the_addresses_of_dial() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        broker: Any = Elsewhere(loop, [REPLY])
        for elsewhere in ((), (PeerAddress(2, "127.0.0.1", 9011), PeerAddress(3, "127.0.0.1", 9012))):
            leaders = broker.calls(elsewhere)
            call = Call(broker, "me", False, broker.clock.monotonic() + 5.0)
            request = pb.FetchMessageRequest(topic="t")
            assert await leaders.at_leader(call, "FetchMessage", request, _never, repeatable=True) is REPLY
            await leaders.close()
        return [address for address, _ in broker.asked]

    assert run_virtually(main) == ["h:2", "127.0.0.1:9011"]


def test_a_library_sets_dial_as_values() -> None:
    config = BrokerConfig(1, "d", (PeerAddress(1, "h", 1),), b"x" * 16, dial=ELSEWHERE)
    assert config.dial == ELSEWHERE
