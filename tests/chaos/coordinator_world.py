"""Three brokers on a model of Raft in virtual time, of which one leads a partition of `__coordinator`.

One broker leads at a time, and one that was deposed may not know it for seconds. Calls are late, doubled, lost before
or behind their effect. What the brokers decide, and what is checked, is a subclass's.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.chaos.raft_model import Raft
from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop

BROKERS = 3
NOBODY = contextvars.Context()  # of no process: it goes on when processes are killed


class CoordinatorWorld:
    """The brokers, the network and the clock of one life."""

    def __init__(self, seed: int, loop: VirtualLoop, *, loses: bool, stale_s: float) -> None:
        """`loses`: calls and answers. `stale_s`: at most, until a coordinator that was deposed knows it."""
        self.loop = loop
        self.rng = random.Random(seed)
        self.clock = VirtualClock(loop)
        self.loses = loses
        self.stale_s = stale_s
        self.calm = False  # nothing is lost any more
        self.log: list[Entry] = []  # committed
        self.rafts = [Raft(self, number) for number in range(1, BROKERS + 1)]
        self.ruler = 0  # the broker that a majority follows
        self.term = 0
        self.anomalies: list[str] = []
        self.transcript: list[str] = []
        self.serving: list[asyncio.Task[None]] = []

    def say(self, text: str) -> None:
        self.transcript.append(f"{self.loop.time():.3f} {text}")

    def delay(self) -> float:
        return self.rng.choice((0.0005, 0.002, 0.01, 0.05))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.clock.call_later(delay_s, call)

    # ---- the network

    async def call(self, serve: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
        """Make a call as a client does. Raises DeadlineExceeded, OutcomeUnknown, and what the server raises."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        answer.add_done_callback(lambda done: void(done.cancelled() or done.exception()), context=NOBODY)
        lossy = self.loses and not self.calm
        lost, doubled = (lossy and self.rng.random() < 0.05 for _ in range(2))
        unanswered = lossy and self.rng.random() < 0.05
        slow_s = self.rng.uniform(0.0, 2.0) if lossy and self.rng.random() < 0.05 else 0.0

        async def arrive(after_s: float) -> None:
            await self.clock.sleep(after_s)
            try:
                result, error = await serve(), None
            except TinymqError as raised:
                result, error = None, raised
            await self.clock.sleep(self.delay())
            if not answer.done() and not unanswered:
                answer.set_exception(error) if error is not None else answer.set_result(result)

        if not lost:
            self.serve(arrive(self.delay() + slow_s))
        if doubled:
            self.serve(arrive(self.delay() + self.rng.uniform(0.0, 4.0)))
        self.later(timeout_s, lambda: None if answer.done() else answer.set_exception(OutcomeUnknown("no answer")))
        return await answer

    def serve(self, work: Any) -> None:
        """Run the work of a server: it goes on when its client does not."""
        self.later(0.0, lambda: self.serving.append(self.loop.create_task(work)))

    def believed_leader(self) -> int:
        leading = [raft.number for raft in self.rafts if raft.leader == raft.number]
        return self.rng.choice(leading or [raft.number for raft in self.rafts])

    # ---- faults

    def elect(self, number: int) -> None:
        """Let a majority follow another broker. The one before may learn it later."""
        before, self.ruler = self.ruler, number
        self.term += 1
        if before:
            old = self.rafts[before - 1]
            kept = self.rng.randint(0, len(old.tail))  # what the new leader has of it, uncommitted
            self.log += [] if before == number else old.tail[:kept]
            if before == number or self.rng.random() < 0.5:
                old.step_down()
            else:
                self.later(
                    self.rng.uniform(0.1, self.stale_s), lambda: old.step_down() if self.ruler != before else None
                )
        new, term = self.rafts[number - 1], self.term
        new.step_down(number)
        new.term = term
        self.say(f"broker {number} leads in term {term}")
        for other in self.rafts:
            if other.leader != other.number:
                other.leader = number

        def lead() -> None:
            if self.ruler == number and self.term == term:
                self.log.append(new.entry(NewEntry(Kind.NOOP, b"")))
                new.apply()
                new.machine.lead(term)

        self.later(self.delay() + self.rng.choice((0.0, 0.3)), lead)

    def lose_log(self) -> None:
        """Forget the newest changes, as after a loss of the quorum; the next leader knows nothing of them."""
        count = self.rng.randint(1, 12)
        self.say(f"the coordinator forgets {count} changes")
        self.log = self.log[: max(0, len(self.log) - count)]
        for raft in self.rafts:
            raft.tail.clear()
            raft.machine.follow()
            raft.leader, raft.applied = None, 0
            raft.machine.load(b"")
            raft.apply()
        self.ruler = 0
        self.elect(self.rng.randint(1, BROKERS))


def void(_: object) -> None:
    """Discard a value."""
