"""Wall clocks jump, and waiting code is not disturbed: it waits by the monotonic clock."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq import Client
from tinymq.base.errors import DeadlineExceeded
from tinymq_chaos.history import History
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.faults import FAULTS, clocks
from tinymq_chaos.real.processes import setup
from tinymq_chaos.real.run.stage import RecordingStage

DEADLINE_S = 20.0
OFF_S_MAX = 60.0  # on a slow machine
FAULT = FAULTS["wall_jump"]

WAITS = """
import asyncio, queue, sys, threading, time
import grpc, grpc.aio

def waits(name, wait):
    began_s, busy_s = time.monotonic(), time.process_time()
    wait()
    print(name, time.monotonic() - began_s, time.process_time() - busy_s, flush=True)

def get():
    try: queue.SimpleQueue().get(timeout=0.2)
    except queue.Empty: pass

def condition():
    with (c := threading.Condition()): c.wait(0.2)

def lock():
    l = threading.Lock(); l.acquire(); l.acquire(timeout=0.2)

async def call():
    async def never(request, context): await asyncio.sleep(1000)
    server = grpc.aio.server()
    methods = {"M": grpc.unary_unary_rpc_method_handler(never)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try: await channel.unary_unary("/s/M")(b"", timeout=0.2)
        except grpc.aio.AioRpcError as error: assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await server.stop(None)

for line in sys.stdin:
    while abs(time.time() - float(line)) > 60: threading.Event().wait(0.02)
    waits("event", lambda: threading.Event().wait(0.2))
    waits("condition", condition)
    waits("lock", lock)
    waits("queue", get)
    waits("loop", lambda: asyncio.run(asyncio.sleep(0.2)))
    waits("call", lambda: asyncio.run(call()))
    print("done", flush=True)
"""


def test_waiting_calls_ignore_jumps_of_the_wall_clock(tmp_path: Path) -> None:
    env = os.environ | clocks.environment(setup.libfaketime(), tmp_path, [1])[1]
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for hours in (1, -1):
                clocks.set_clock(tmp_path, 1, hours * clocks.HOUR_S)
                print(time.time() + hours * clocks.HOUR_S, file=process.stdin, flush=True)
                names = []
                while (words := process.stdout.readline().split()) and words != ["done"]:
                    names.append(words[0])
                    assert 0.19 < float(words[1]) < 5.0, (hours, words)
                    assert float(words[2]) < 0.15, f"{words} at {hours} h: it did not wait, it was busy"
                assert names == ["event", "condition", "lock", "queue", "loop", "call"]
        finally:
            process.kill()


def test_a_broker_whose_clock_jumps_keeps_its_deadlines_and_its_leases(tmp_path: Path) -> None:
    env = clocks.environment(setup.libfaketime(), tmp_path / "c", [1])
    with Cluster(tmp_path / "c", 1, env=env) as cluster:
        cluster.up()
        stage = RecordingStage(cluster, History())
        with Client(cluster.servers) as client, Client(cluster.servers, request_timeout_ms=5_000) as other:
            client.admin.create_topic("t", 1, 1)
            term = status(cluster)["term"]
            for hours in (-1.0, 1.0):
                fault = FAULT.begin(stage, random.Random(1), {"broker": 1.0, "hours": hours})
                assert next(fault) == f"broker 1 by {hours:+g} h"
                wait_off(client, hours * clocks.HOUR_S)
                before = other.send("t", b"").append_time_us
                assert next(fault, None) is None
                wait_off(client, 0.0)
                assert other.send("t", b"").append_time_us >= before, "a partition's time never goes back"
            assert cluster.unhealthy() == ""
            assert status(cluster)["term"] == term, "nobody took the jump for a silence"


def status(cluster: Cluster) -> dict[str, object]:
    page = cluster.status(1)
    assert page is not None
    (replica,) = (each for each in page["replicas"] if each["topic"] == "t")
    return dict(replica)


def wait_off(client: Client, off_s: float) -> None:
    """Wait until the broker's clock has this offset, as the records that it appends to new partitions show."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        topic = f"t-{time.monotonic_ns()}"
        client.admin.create_topic(topic, 1, 1)
        appended_s = client.send(topic, b"x").append_time_us / 1e6
        if abs(appended_s - time.time() - off_s) < OFF_S_MAX:
            return
        if time.monotonic() > until_s:
            raise DeadlineExceeded(f"the clock is off by {appended_s - time.time():.0f} s, not by {off_s}")


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_jump_is_a_line_in_the_brokers_clock(tmp_path: Path, hours: float) -> None:
    stage = RecordingStage(StandIn(3, tmp_path), History())
    env = clocks.environment(Path("lib"), tmp_path, [1, 2, 3])
    files = {broker: Path(env[broker]["FAKETIME_TIMESTAMP_FILE"]) for broker in (1, 2, 3)}
    assert [file.read_text() for file in files.values()] == ["+0\n"] * 3
    fault = FAULT.begin(stage, random.Random(1), {"broker": 2.0, "hours": hours})
    next(fault)
    assert [file.read_text() for file in files.values()] == ["+0\n", f"{3600 * hours:+.0f}\n", "+0\n"]
    assert next(fault, None) is None
    assert files[2].read_text() == "+0\n"
    assert {each.name for each in files[2].parent.iterdir()} == {"broker-1", "broker-2", "broker-3"}


def test_without_the_library_the_error_has_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(self: Path, pattern: str) -> list[Path]:
        return []

    monkeypatch.setattr(Path, "glob", nowhere)
    with pytest.raises(RuntimeError, match="apt-get install libfaketime"):
        setup.libfaketime(tmp_path)


def test_a_failed_download_is_reported_and_leaves_no_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "LIBFAKETIME", "libnever.so.1")
    setup.get_libfaketime(tmp_path / "tools")
    assert "this is no Debian" in (said := capsys.readouterr().err)
    assert "apt-get install libfaketime" in said
    assert list((tmp_path / "tools").iterdir()) == []
