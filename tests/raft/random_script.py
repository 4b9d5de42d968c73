"""Random commands of `scripted.py`, and the rules that hold after any of them. `test_storms` runs many brokers in one
virtual time. Here each message, sync and timer is a step of its own, so orders of events occur that a network rarely
produces. The list of commands is a scenario that a person can read, shorten and keep.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.raft.scripted import Scenario
from tests.raft.scripted_brokers import ScriptedBroker, Sent
from tests.raft.scripted_words import kind_of
from tests.raft.values import GROUP
from tinymq.raft import Role
from tinymq.raft.rules.membership import Membership, Replica

HEAL_S = 15.0  # more than a repair takes that was refused a few times
MARKED_S = 0.3  # after so long without writes a mark covers all that is synced


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of a message, and the two processes between which it was sent: it may be replayed only between these."""

    name: str
    sent: Sent
    processes: tuple[object, object]


class RandomScript:
    """One life of a group of `count` brokers. `commands` is what was done."""

    def __init__(self, seed: int, count: int) -> None:
        self.commands: list[str] = []
        self._rng = random.Random(f"{seed}/{count}")
        self._scenario = Scenario()
        self._count = count
        self._written = 0
        self._kept: list[Kept] = []
        self._wiped: set[int] = set()  # brokers whose previous disk may come back
        self._damaged: dict[int, Replica] = {}  # by broker: the replica with a flipped bit, perhaps unread
        self._listed: Membership | None = None  # the newest CONFIG that any replica applied
        self._draws: list[tuple[int, Callable[[ScriptedBroker], str]]] = [
            (42, self._message), (3, self._replay), (12, self._propose), (3, self._campaign), (3, self._trim),
            (9, lambda b: f"run {self._rng.choice([0.02, 0.1, 0.3, 0.6])}"),
            (4, lambda b: f"wait {self._rng.choice([0.05, 0.3, 0.8])}"), (4, self._cut), (4, lambda b: "join"),
            (4, self._end), (8, self._restart), (4, self._disk), (3, self._hurt),
        ]  # fmt: skip

    @property
    def _brokers(self) -> dict[int, ScriptedBroker]:
        return self._scenario._brokers

    async def live(self, steps: int) -> None:
        """Raises AssertionError when a rule does not hold."""
        await self._do(f"brokers {self._count} segments=4096")
        await self._do("elect 1")
        weights = [weight for weight, _ in self._draws]
        for _ in range(steps):
            (draw,) = self._rng.choices([draw for _, draw in self._draws], weights)
            if command := draw(self._brokers[self._rng.randint(1, self._count)]):
                await self._do(command)
        await self._heal()
        await self._scenario.close()

    async def _do(self, command: str) -> None:
        self.commands.append(command)
        told = await self._scenario.do(command)
        applied = [b.group.membership for b in self._brokers.values() if b.up]
        self._listed = max((m for m in (*applied, self._listed) if m is not None), key=_epoch, default=None)
        for line in told:
            number, _, what = line.strip().partition(" ")
            assert not what.startswith("is failed"), line
            assert not what.startswith("is quarantined") or int(number) in self._damaged, line

    async def _heal(self) -> None:
        """End all faults: every replica is a member again, and the group accepts writes."""
        for b in self._brokers.values():
            await self._do(f"unhang {b.id}" if b.up else f"restart {b.id}")
        await self._do("join")
        for _ in range(round(HEAL_S / 0.5)):
            await self._do("run 0.5")
            leader = max((b for b in self._brokers.values() if b.group.is_leader), key=_term, default=None)
            if leader is None or not all(b.group.role in (Role.LEADER, Role.FOLLOWER) for b in self._brokers.values()):
                continue
            end = self._scenario.ledger.end(GROUP)
            await self._do(f"propose {leader.id} last; run 0.5")
            if self._scenario.ledger.end(GROUP) > end:
                return
        await self._do("status")
        raise AssertionError("the group never heals")

    # ---- the next command; "" when it is impossible now -----------------------------------------------------------

    def _message(self, _: ScriptedBroker) -> str:
        queue = self._scenario._links.queue
        if not queue:
            return ""
        sent = self._rng.choice([queue[0], self._rng.choice(queue)])
        way, kind = f"{sent.source}->{sent.target}", kind_of(sent)
        fate = self._rng.random()
        if fate < 0.1:
            return f"drop {way} {kind}"
        if fate < 0.2:
            last = [s for s in queue if (s.source, s.target, kind_of(s)) == (sent.source, sent.target, kind)][-1]
            self._kept.append(Kept(f"k{len(self._kept)}", last, self._between(last)))
            return f"copy {way} {kind} as {self._kept[-1].name}; deliver {way}"
        return f"deliver {way} {kind}" if fate < 0.6 else f"deliver {way}"

    def _between(self, sent: Sent) -> tuple[object, object]:
        source, target = (self._brokers[n] for n in (sent.source, sent.target))
        return source.clock, target.clock  # each process has its own links

    def _replay(self, _: ScriptedBroker) -> str:
        """The transport promises that no message outlives the processes between which it was sent."""
        able = [
            k for k in self._kept
            if k.processes == self._between(k.sent) and self._scenario._links.linked(k.sent.source, k.sent.target)
        ]  # fmt: skip
        return f"replay {self._rng.choice(able).name}" if able else ""

    def _propose(self, _: ScriptedBroker) -> str:
        leaders = [b.id for b in self._brokers.values() if b.up and b.group.is_leader]
        self._written += 1
        return f"propose {self._rng.choice(leaders)} v{self._written}*{self._rng.choice([10, 2500])}" if leaders else ""

    def _campaign(self, broker: ScriptedBroker) -> str:
        return f"campaign {broker.id}" if broker.up else ""

    def _trim(self, broker: ScriptedBroker) -> str:
        able = broker.up and broker.group.failure is None and not broker.disk.hangs
        return f"trim {broker.id} {broker.group.applied_index}" if able else ""

    def _cut(self, broker: ScriptedBroker) -> str:
        other = self._rng.choice([n for n in self._brokers if n != broker.id])
        return f"cut {broker.id} from {other}" if self._scenario._links.linked(broker.id, other) else ""

    def _end(self, broker: ScriptedBroker) -> str:
        return f"{self._rng.choice(['crash', 'power-cut'])} {broker.id}" if broker.up else ""

    def _restart(self, _: ScriptedBroker) -> str:
        down = [b.id for b in self._brokers.values() if not b.up]
        return f"restart {self._rng.choice(down)}" if down else ""

    def _disk(self, broker: ScriptedBroker) -> str:
        return f"{'unhang' if broker.disk.hangs else 'hang'} {broker.id}" if broker.up else ""

    def _is_whole(self, broker: ScriptedBroker) -> bool:
        """Is the replica a member that has lost nothing? Its own view is not enough: an old disk believes that it is a
        member.
        """
        if not broker.up or self._listed is None or not self._listed.has(broker.state.me):
            return False
        return broker.group.role in (Role.LEADER, Role.FOLLOWER) and self._damaged.get(broker.id) != broker.state.me

    def _hurt(self, broker: ScriptedBroker) -> str:
        """Damage one disk only while the others are whole: only that is promised. The flipped bit is covered by a mark
        (docs/guarantees.md, known limits).
        """
        others = [b for b in self._brokers.values() if b is not broker and self._is_whole(b)]
        if not broker.up or len(others) <= self._count // 2:
            return ""
        what = self._rng.choice(["wipe", "wipe", "forget", "damage", *["swap"] * (broker.id in self._wiped)])
        if what == "wipe":
            self._wiped.add(broker.id)
        if what == "damage":
            if broker.disk.hangs:
                return ""
            self._damaged[broker.id] = broker.state.me
            return f"run {MARKED_S}; crash {broker.id}; damage {broker.id}"
        return f"crash {broker.id}; {what} {broker.id}"


def _epoch(membership: Membership) -> int:
    return membership.epoch


def _term(broker: ScriptedBroker) -> int:
    return broker.group.term


def lived(seed: int, count: int, steps: int) -> None:
    """Run a random script. Raises AssertionError with all its commands."""
    script = RandomScript(seed, count)
    try:
        asyncio.run(script.live(steps))
    except Exception as error:
        done = "".join(f"> {command}\n" for command in script.commands)
        raise AssertionError(f"seed {seed}, {count} brokers: {error!r}\n{done}") from error
