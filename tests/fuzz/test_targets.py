"""Every target with dozens of damaged inputs: a value or a typed error, in time, within its bound of memory. Targets
that may end the process run in another one. `make fuzz` runs all of them for longer.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import __main__ as command
from tests.fuzz.driver import CASE_S_MAX, Case, Finding, Loaded, Target, limited_memory, sweep
from tests.fuzz.formats import command_calls
from tests.fuzz.mutate import CHANGES, mutate, steps
from tests.fuzz.targets import ALL
from tinymq.base.errors import CorruptData, WrongSecret
from tinymq.proto import partition_pb2, peer_pb2

IN_PROCESS = [name for name, target in ALL.items() if not target.alone]
ALONE = [name for name, target in ALL.items() if target.alone]

loaded = cache(lambda name: Loaded(ALL[name]))


@pytest.mark.parametrize("name", IN_PROCESS)
def test_damage(name: str) -> None:
    target = loaded(name)

    @given(st.integers(0, len(target.seeds) - 1), st.integers(0, len(target.target.reseals)), steps)
    @settings(
        max_examples=max(12, target.target.cases // 16), derandomize=True, database=None, deadline=1000 * CASE_S_MAX,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def body(which: int, reseal: int, changes: list[tuple[int, int, int, int]]) -> None:
        target.measured(Case(which, reseal, tuple(changes)))

    with limited_memory():
        body()


@pytest.mark.parametrize("name", IN_PROCESS)
def test_undamaged_inputs_are_taken(name: str) -> None:
    """Otherwise the fuzzer would damage inputs that are refused at the first byte anyway."""
    target = loaded(name)
    for data in target.seeds:
        target.target.parse(data)
        for number in range(len(target.target.reseals)):
            resealed = target.target.reseals[number](data)
            (target.target.sealed or target.target.parse)(resealed)


def test_every_command_of_a_partition_is_damaged() -> None:
    known = {field.name for field in partition_pb2.Command.DESCRIPTOR.oneofs_by_name["command"].fields}
    assert known == {command.WhichOneof("command") for commands in command_calls() for command in commands}


def test_arrow_in_a_process_of_its_own() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *ALONE, "--quick"],
        capture_output=True, text=True, timeout=100, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert child.returncode == 0, f"exit {child.returncode}\n{child.stdout[-3000:]}{child.stderr[-2000:]}"
    assert child.stdout.count(" cases ") == len(ALONE)


# ---- the fuzzer itself ---------------------------------------------------------------------------------------


@given(st.binary(max_size=300), steps)
@settings(max_examples=100, derandomize=True, database=None, deadline=None)
def test_any_step_means_something_for_any_bytes(data: bytes, changes: list[tuple[int, int, int, int]]) -> None:
    spoilt = mutate(data, changes, [data, b"other"])
    assert mutate(data, changes, [data, b"other"]) == spoilt
    assert len(spoilt) <= len(data) + 5000 * len(changes) + 300


def test_every_kind_of_step_changes_something() -> None:
    data = bytes(range(256)) * 2
    for kind in range(len(CHANGES)):
        assert any(mutate(data, [(kind, n * 37, n, n * 7)], [b"pool" * 9]) != data for n in range(1, 20)), kind


def _naive(data: bytes) -> object:
    """Trusts its input, like a parser that was never fuzzed."""
    if data[:2] != b"ok":
        raise CorruptData("no")
    return data[2 : 2 + data[2]] + bytes([data[5]])


def test_the_driver_finds_what_is_wrong_and_says_how_to_see_it_again() -> None:
    naive = Loaded(Target("naive", lambda: [b"ok\x03abc"], _naive))
    with pytest.raises(Finding, match=r"naive case 1:\d+: IndexError") as found:
        sweep(naive, 1, iter(range(2000)))
    assert "again: python -m tests.fuzz naive --case 1:" in str(found.value)
    greedy = Loaded(Target("greedy", lambda: [b"\1"], lambda data: bytes(1 << 22), bytes_max=1 << 20))
    with pytest.raises(Finding, match="bytes allocated"):
        sweep(greedy, 1, iter(range(3)))


def test_a_bound_that_is_missing_is_a_finding_and_does_not_end_the_process() -> None:
    """Leaves some memory, so that the code behind it can run."""
    trusting = Loaded(Target("trusting", lambda: [b"\1"], lambda data: bytes(64 << 30)))
    with limited_memory(), pytest.raises(Finding, match="trusting case 1:0: MemoryError"):
        sweep(trusting, 1, iter(range(3)))
    assert len(bytes(3 << 30)) == 3 << 30


def test_targets_for_which_there_was_no_time_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0

    def process(names: list[str], arguments: list[str]) -> int:
        """Each takes three seconds."""
        nonlocal now
        now += 3.0
        return 0

    def last_line(seconds: float) -> str:
        options = Namespace(names=["peer", "arrow"], seconds=seconds, seed=1, quick=False)
        assert command._all(options) == 0
        return capsys.readouterr().out.splitlines()[-1]

    monkeypatch.setattr(command, "_process", process)
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: now))
    said = last_line(5.0)
    assert said.startswith("NOT REACHED within 5 s: ")
    assert "arrow.produce" in said
    assert "peer.frames" not in said
    assert "NOT REACHED" not in last_line(60.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [("arow", "arrow.produce, arrow.fetch"), ("peers", "peer.hello"), ("model.logs", "model.log"), ("zzz", "folder, ")],
)
def test_a_name_of_nothing_is_answered_in_one_line_and_nothing_is_run(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.sys, "argv", ["tests.fuzz", "entries", name, "--seconds", "0.1"])
    assert command.main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"no name begins with {name}; ")
    assert said in line


def test_a_reason_that_nobody_reads_is_no_finding() -> None:
    """The proof covers the sender's identity in the Hello. A changed proof or number is refused."""
    answer = ALL["peer.answer"]
    hello = peer_pb2.Hello.FromString(answer.seeds()[0])
    hello.reason = "x"
    assert answer.parse(hello.SerializeToString()) == answer.parse(answer.seeds()[0])
    hello.session += 1
    with pytest.raises(WrongSecret):
        answer.parse(hello.SerializeToString())
