"""The reported problems of a cluster, from pages that brokers might show."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tinymq.metrics.watched import METADATA
from tinymq_chaos.real.processes.health import Status, Statuses, ask, leader, placed, wrong

PLACED = {("t", 0): (1, 2, 3)}


def replica(topic: str, role: str, leads: int | None, *, term: int = 3, at: int = 100, reason: str = "") -> Status:
    return {
        "topic": topic, "partition": 0, "role": role, "reason": reason, "term": term, "leader": leads,
        "durable_index": at, "commit_index": at,
    }  # fmt: skip


def page(broker: int, leads: int = 1) -> Status:
    """Return the page of one of three healthy brokers, of which `leads` leads everything."""
    role = "leader" if broker == leads else "follower"
    return {
        "state": "running",
        "reason": "",
        "metadata_leader": leads,
        "peers": [{"broker": other, "alive": True} for other in (1, 2, 3) if other != broker],
        "replicas": [replica(METADATA, role, leads), replica("t", role, leads)],
    }


def pages() -> dict[int, Status | None]:
    return {broker: page(broker) for broker in (1, 2, 3)}


def changed(broker: int, **values: Any) -> Statuses:
    return pages() | {broker: page(broker) | values}


def of_t(broker: int, **values: Any) -> Statuses:
    """Return a page with another replica of t on `broker`."""
    return changed(broker, replicas=[page(broker)["replicas"][0], page(broker)["replicas"][1] | values])


def said(after: Statuses, before: Statuses | None = None, **down: str) -> list[str]:
    return list(wrong(before or pages(), after, PLACED, {int(name[1:]): why for name, why in down.items()}))


def test_nothing_is_said_when_all_is_well() -> None:
    assert said(pages()) == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (changed(2, state="unformed", reason="nobody knows"), ["broker 2 is unformed (nobody knows)"]),
        (changed(2, metadata_leader=None), ["broker 2 knows no leader of the metadata"]),
        (
            changed(2, peers=[{"broker": 1, "alive": False}, {"broker": 3, "alive": True}]),
            ["broker 2 does not hear 1"],
        ),
        (changed(2, peers=[]), ["broker 2 does not hear 1, 3"]),
        (changed(2, replicas=[page(2)["replicas"][0]]), ["t/0 on broker 2 is missing"]),
        (of_t(2, role="learner", reason="half way"), ["t/0 on broker 2 is learner (half way)"]),
        (of_t(2, role="failed"), ["t/0 on broker 2 is failed"]),
        (of_t(2, leader=None), ["t/0 on broker 2 does not follow broker 1"]),
        (of_t(2, leader=3, term=2), ["t/0 on broker 2 does not follow broker 1"]),
        (of_t(2, durable_index=93), ["t/0 on broker 2 is 7 entries behind broker 1"]),
    ],
)
def test_problems_of_one_broker_are_reported(after: Statuses, words: list[str]) -> None:
    assert said(after) == words


def test_a_broker_without_an_answer_is_reported_once() -> None:
    assert said({**pages(), 2: None}) == ["broker 2 does not answer"]
    assert said({**pages(), 2: None}, b2="it was killed") == ["broker 2 is down (it was killed)"]


def test_without_any_answer_only_silence_is_reported() -> None:
    nobody: Statuses = dict.fromkeys((1, 2, 3))
    assert list(wrong(nobody, nobody, None, {})) == [f"broker {b} does not answer" for b in (1, 2, 3)]


def test_a_follower_may_lack_entries_since_the_first_look() -> None:
    after = changed(1, replicas=[page(1)["replicas"][0], replica("t", "leader", 1, at=150)])
    assert said(after) == []
    assert said(pages(), before=after) == [f"t/0 on broker {b} is 50 entries behind broker 1" for b in (1, 2, 3)]


def test_a_partition_without_a_leader() -> None:
    lost = {b: page(b) | {"replicas": [page(b)["replicas"][0], replica("t", "candidate", None)]} for b in (1, 2, 3)}
    words = said(lost)
    assert words[0] == "t/0 has no leader"
    assert words[1:] == [f"t/0 on broker {b} is candidate" for b in (1, 2, 3)]


def test_unknown_placements_are_a_problem() -> None:
    assert list(wrong(pages(), pages(), None, {})) == ["no broker says where replicas are"]


def test_a_topic_that_only_the_placement_knows_is_missing_everywhere() -> None:
    words = list(wrong(pages(), pages(), {("new", 0): (1, 2)}, {}))
    assert words == ["new/0 has no leader", "new/0 on broker 1 is missing", "new/0 on broker 2 is missing"]


def test_the_leader_is_that_of_the_newest_term() -> None:
    assert leader(pages(), "t", 0) == 1
    assert leader(of_t(1, term=2), "t", 0) == 1
    assert leader(of_t(3, term=4, leader=3), "t", 0) == 3
    assert leader(of_t(3, term=5, leader=None), "t", 0) == 1, "nobody has been elected in term 5 yet"
    assert leader({1: None, 2: page(2), 3: None}, "t", 0) == 1
    assert leader(pages(), "t", 1) is None
    assert leader(dict.fromkeys((1, 2, 3)), "t", 0) is None


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Answering(BaseHTTPRequestHandler):
    says = b""
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.says)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "says", "answer"),
    [
        (200, json.dumps({"state": "running"}).encode(), {"state": "running"}),
        (503, json.dumps({"state": "failed"}).encode(), {"state": "failed"}),
        (503, b"503 Service Unavailable: too many connections", None),
        (200, b"[]", None),
        (200, b"{}", None),
    ],
)
def test_a_page_is_read_whatever_its_status(
    server: HTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, says: bytes, answer: Status | None
) -> None:
    monkeypatch.setattr(Answering, "status", status)
    monkeypatch.setattr(Answering, "says", says)
    assert ask(f"127.0.0.1:{server.server_port}") == answer


def test_a_missing_process_gives_no_answer() -> None:
    assert ask("127.0.0.1:1") is None
    assert placed("127.0.0.1:1", 0.2) is None
