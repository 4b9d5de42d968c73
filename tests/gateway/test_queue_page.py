"""The examples of docs/queue-service.md, run by a client that uses only reflection."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.reflecting_client import Reflecting
from tinymq.base.errors import BY_CODE, TinymqError
from tinymq.broker.state.cursors import TAKEN_MAX
from tinymq.rpc.common.statuses import status_of
from tinymq.testing.cluster import Cluster

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "queue-service.md").read_text()
EXAMPLE = re.compile(r"^\$ grpcurl (?P<words>.+)\n(?P<shown>(?:(?!\$ |```).*\n)*)", re.MULTILINE)
TIME = re.compile(r'("\w*(?:time|deliver_at)\w*_us": ")17(?!00000000000000)\d{14}"')
LEASE = re.compile(r'"lease": "([\w+/=]+)"')
SCHEDULE_ID = re.compile(r'"schedule_id": "\d+"')
LEFT = re.compile(r'"lease_ms": \d+')
SETTINGS = re.compile(r',\n *"(group_id|settings|start_us)": ("-?\d+"|\[[^]]*\])')  # the page leaves them out
OWN_SIDE = {"NotDelivered", "WrongEventLoop", "UnknownError", "RetriableUnknownError", "Error"}


def run(client: Reflecting, words: list[str]) -> str:
    """Return the output of grpcurl for these arguments."""
    if words[-1] == "list":
        return "\n".join(client.services())
    request = words[words.index("-d") + 1]
    try:
        answer = client.call(words[-1], request)
    except grpc.RpcError as error:
        failed: Any = error  # a grpc.Call as well
        code = failed.code().name.title().replace("_", "")
        return f"ERROR:\n  Code: {code}\n  Message: {failed.details()}"
    return json.dumps(answer, indent=2)


def at_any_time(text: str) -> str:
    """The text without what differs from one run to the next."""
    text = SETTINGS.sub("", LEASE.sub('"lease": "<lease>"', TIME.sub(r'\1<now>"', text)))
    text = SCHEDULE_ID.sub('"schedule_id": "<id>"', text)
    return LEFT.sub('"lease_ms": <left>', text).strip()


def test_every_example_in_its_order() -> None:
    examples = [(shlex.split(m["words"]), m["shown"]) for m in EXAMPLE.finditer(PAGE)]
    seen, leases = set(), {}  # what was leased, by the lease on the page
    with Cluster(nodes=3) as cluster:
        clients = {f"127.0.0.1:{7069 + n}": Reflecting(cluster.address(n)) for n in (1, 2, 3)}
        for words, shown in examples:
            (address,) = (word for word in words if word in clients)
            for lease, actual in leases.items():
                words = [word.replace(lease, actual) for word in words]
            output = run(clients[address], words)
            assert at_any_time(output) == at_any_time(shown), words
            leases |= dict(zip(LEASE.findall(shown), LEASE.findall(output), strict=True))
            seen.add(words[-1].rpartition("/")[2])
        for client in clients.values():
            client.close()
    calls = {"CreateQueue", "DeleteQueue", "GetQueueSize", "ProduceMessage", "AsyncProduceMessage"}
    assert seen >= calls | {"ConsumeMessage", "FetchMessage", "Settle", "CreateGroup", "list"}


def rows() -> dict[str, set[str]]:
    table = re.findall(r"^\| `([A-Z_]+)` \| ([\w, ]+) \|", PAGE, re.MULTILINE)
    return {status: set(codes.split(", ")) for status, codes in table}


def test_the_table_of_statuses_is_the_codes() -> None:
    wired = {code: kind for code, kind in BY_CODE.items() if kind.__init__ is TinymqError.__init__}
    travelling = {code for code, kind in wired.items() if kind.__module__ != "tinymq.outbox.errors"} - OWN_SIDE
    expected: dict[str, set[str]] = {}
    for code in travelling:
        expected.setdefault(status_of(BY_CODE[code]("x")).name, set()).add(code)
    assert rows() == expected


@pytest.mark.parametrize("number", [f"{TAKEN_MAX:,} takes"])
def test_the_numbers(number: str) -> None:
    assert number in PAGE
