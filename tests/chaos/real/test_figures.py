"""Figures are computed from acknowledgements, and failures produce them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from tinymq.client import AsyncClient
from tinymq_chaos.real.figures.__main__ import take
from tinymq_chaos.real.figures.figure import Figure, FigurePart, distribution, quantile, table
from tinymq_chaos.real.figures.load import AcknowledgedWrite, Load, Writes
from tinymq_chaos.real.figures.measures import PARTITIONS, FigureTrial, Pauses, away, failover


def writes(partition: int, *at_s: float) -> Writes:
    found = Writes(partition, began_s=0.0)
    found.acks += [AcknowledgedWrite(f"{partition}-{n}", n, at - 0.01, at) for n, at in enumerate(at_s)]
    return found


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_quantile_is_a_value_that_was_seen(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value


@pytest.mark.parametrize(
    ("since_s", "until_s", "pause"),
    [
        (2.0, 6.5, (1.9, 3.4)),  # began before the failure, and ends after it
        (3.4, 9.0, (6.0, 9.0)),  # has not ended yet
        (0.0, 1.0, (0.0, 1.0)),  # nothing was acknowledged before
        (7.0, 9.0, (6.0, 9.0)),
    ],
)
def test_a_pause_is_the_longest_time_without_an_answer(since_s: float, until_s: float, pause: Any) -> None:
    assert writes(0, 1.0, 1.1, 1.9, 3.4, 4.0, 5.0, 6.0).pause(since_s, until_s) == pause


def test_partitions_that_were_hit_are_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinymq_chaos.real.figures.measures.time.monotonic", lambda: 5.0)
    load = Load(cast(AsyncClient, None), "t", 2)
    load.partitions = [writes(0, 0.9, 1.7, 4.99), writes(1, 1.0, 1.2, 2.0, 3.0, 4.0, 4.99)]
    pauses = Pauses()
    pauses.add(load, [0], 1.0, 1.5)
    assert pauses.led == [pytest.approx(4.99 - 1.0)]
    assert pauses.elsewhere == [pytest.approx(1.0)]


def test_a_stall_before_the_end_of_the_failure_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old leader answers until it is dead, however long ago it was signalled."""
    monkeypatch.setattr("tinymq_chaos.real.figures.measures.time.monotonic", lambda: 5.0)
    load = Load(cast(AsyncClient, None), "t", 1)
    load.partitions = [writes(0, 0.5, 1.3, 1.4, 1.7, 1.71, 4.99)]
    load.partitions[0].acks[-1:] = writes(0, *[1.8 + n / 10 for n in range(30)]).acks
    pauses = Pauses()
    pauses.add(load, [0], 1.2, 1.45)
    assert pauses.led == [pytest.approx(1.7 - 1.2)]


def test_unavailable_time_excludes_short_pauses() -> None:
    acks = writes(0, 0.05, 0.1, 0.15, 2.15, 2.2, 2.25).acks
    assert away(acks, 0.0, 2.3) == pytest.approx(2.0)
    assert away([], 0.0, 2.3) == pytest.approx(2.3)


def test_a_figure_marks_missed_bounds() -> None:
    parts = (*distribution("", "s", [0.1, 0.2, 1.5], [(0.5, 0.6), (0.99, 1.0)]), FigurePart("lost", 0, 0, ""))
    missed = Figure("f", "writes resume", parts, "3 kills")
    reached = Figure("g", "chain", (FigurePart("available", 99.5, 99.0, "%", least=True),), "60 s")
    assert [part.reached for part in parts] == [True, False, True, True]
    assert not missed.reached
    assert reached.reached
    assert not FigurePart("available", 98.9, 99.0, "%", least=True).reached
    assert table([missed, reached]).splitlines()[2:] == [
        "| writes resume | p50 ≤ 0.600 s, p99 ≤ 1 s, lost 0 | p50 0.200 s, p99 1.500 s, max 1.500 s, lost 0 "
        "**missed** | 3 kills |",
        "| chain | available ≥ 99 % | available 99.5 % | 60 s |",
    ]


@pytest.mark.timeout(180)
def test_failovers_are_measured_on_real_brokers(tmp_path: Path) -> None:
    said: list[str] = []

    async def measured(trial: FigureTrial) -> Figure:
        trial.say = said.append
        return await failover(trial, failures=1)

    figure = asyncio.run(take("failover", measured, tmp_path / "cluster", random.Random(1)))
    assert [line.split(":")[0] for line in said] == ["1/1"]
    assert len(figure.samples["led"]) >= 1  # partitions that lost their leader
    assert len(figure.samples["led"]) + len(figure.samples["elsewhere"]) == PARTITIONS
    assert (
        min(figure.samples["led"]) > 0
    )  # the duration depends on the machine: a disk that hung for 0.4 s was observed
    by_name = {part.name: part for part in figure.parts}
    assert all(by_name[name].reached for name in ("acknowledged and lost", "twice", "calls without an answer"))
    assert "1 kills" in figure.basis
