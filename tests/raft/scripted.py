"""Scenarios: commands that drive brokers step by step, each followed by the record of its effects.

`scenarios/README.md` explains transcripts, commands and the words of a record. Each command is a method `do_NAME` of
`Scenario`. After each command the scenario compares the brokers with what they were before, and records the
differences.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from tests.raft.harness import Ledger
from tests.raft.scripted_brokers import Links, ScriptedBroker, Sent, idle
from tests.raft.scripted_words import changes, describe, kind_of, look, name_entry, name_replica, shorten
from tests.raft.values import GROUP
from tinymq.base.config import Limits
from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.log.files.layout import SEGMENT, VOTES
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.rules.membership import Replica, make_first_entry
from tinymq.simulation.faulty_files import FaultyFiles

DELIVERIES_MAX = 3_000
ELECTIONS_MAX = 4
READ_S = 5.0
STEP_S = 0.005
NEVER = float("inf")


class Apart(Ledger):
    """A ledger that checks nothing, for a replica whose history was given up."""

    def applied(self, group: GroupId, broker_id: int, entry: Entry) -> None:
        pass


class Stage:
    """The brokers of one transcript, and the record of what they do."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._links = Links()
        self._links.on_sent = self._sent
        self._brokers: dict[int, ScriptedBroker] = {}
        self._first: Entry | None = None
        self._lines: list[str] = []
        self._kept: dict[str, Sent] = {}
        self._known: dict[tuple[int, int], str] = {}  # (index, term) -> the name of the entry
        self._reads: set[asyncio.Task[None]] = set()
        self._depth = 0  # indentation of the effects of a message
        self._limits = Limits()
        self._now = 100.0

    @property
    def _names(self) -> dict[bytes, str]:
        return {incarnation: name for b in self._brokers.values() for incarnation, name in b.names.items()}

    def _tell(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    def _look(self, only: int | None = None) -> None:
        for broker in self._brokers.values():
            if broker.up and GROUP in broker.host.groups and only in (None, broker.id):
                for line in changes(broker, self._names, self._known):
                    self._tell(f"{broker.id} {line}")

    def _sent(self, sent: Sent) -> None:
        self._look(sent.source)
        self._tell(f"{sent.source} sends to {sent.target}: {describe(sent, self._names).split(' ', 1)[1]}")

    async def _settle(self) -> None:
        await idle(self._links)
        self._look()

    def _lost(self, lost: Iterable[Sent]) -> None:
        for sent in lost:
            self._tell(f"lost: {describe(sent, self._names)}")

    async def do_status(self) -> None:
        await self._settle()
        for broker in self._brokers.values():
            if not broker.up:
                self._tell(f"{broker.id} is down")
                continue
            group = broker.group
            log = group.log
            held = shorten(self._known[i, log.term_at(i) or 0] for i in range(log.first_index, log.last_index + 1))
            role = group.role.value + (f" of {group.leader}" if group.leader not in (None, broker.id) else "")
            durable = "" if log.durable_index == log.last_index else f", synced {log.durable_index}"
            self._tell(f"{broker.id} {role}, term {group.term}, commit {group.commit_index}{durable}: {held}")

    def do_queue(self) -> None:
        for sent in self._links.queue:
            self._tell(describe(sent, self._names))


Selection = Callable[[Sent], bool]


def _selection(words: Sequence[str]) -> Selection:
    """`A->B KIND`; either may be missing, and `*` is any broker."""
    way = next((w for w in words if "->" in w), "*->*")
    kind = next((w for w in words if "->" not in w), None)
    source, target = way.split("->")
    return lambda s: (
        source in ("*", str(s.source)) and target in ("*", str(s.target)) and kind in (None, kind_of(s))
    )  # fmt: skip


class Wires(Stage):
    """The commands about links and messages."""

    def _link(self, numbers: Iterable[int], others: Iterable[int] | None = None) -> None:
        for a in numbers:
            for b in self._brokers if others is None else others:
                if a != b:
                    self._links.link(a, b)

    def do_cut(self, number: str, word: str, *others: str) -> None:
        assert word == "from"
        for other in others:
            self._lost(self._links.unlink(int(number), int(other)))

    def do_join(self, number: str = "", word: str = "to", *others: str) -> None:
        assert word == "to"
        self._link([int(number)] if number else list(self._brokers), [int(o) for o in others] or None)

    async def do_deliver(self, *words: str) -> None:
        await self._deliver(_selection(words), again=not words)

    async def _deliver(self, chosen: Selection, again: bool) -> None:
        """Deliver the messages in flight; with `again`, also the messages that they cause."""
        for _ in range(DELIVERIES_MAX):
            due = [s for s in self._links.queue if chosen(s)]
            if not due:
                return
            for sent in due[:1] if again else due:
                if sent in self._links.queue:  # otherwise its link has closed
                    self._links.queue.remove(sent)
                    await self._arrive(sent)
            if not again:
                return
        raise AssertionError("the brokers never stop talking")

    async def _arrive(self, sent: Sent) -> None:
        self._tell(describe(sent, self._names))
        self._depth = 1
        self._links.deliver(sent)
        await self._settle()
        self._depth = 0

    def do_drop(self, *words: str) -> None:
        chosen = _selection(words)
        lost = [s for s in self._links.queue if chosen(s)]
        assert lost or not words, "no such message is in flight"
        self._links.queue = [s for s in self._links.queue if not chosen(s)]
        self._lost(lost)

    def do_copy(self, *words: str) -> None:
        *selection, word, name = words
        assert word == "as"
        chosen = _selection(selection)
        self._kept[name] = sent = [s for s in self._links.queue if chosen(s)][-1]
        self._tell(f"{name}: {describe(sent, self._names)}")

    async def do_replay(self, name: str, *changes: str) -> None:
        kept = self._kept[name]
        head = pb.Peer.FromString(kept.head.SerializeToString())
        ends = {"from": kept.source, "to": kept.target}
        for change in changes:
            what, _, value = change.partition("=")
            if what in ends:
                ends[what] = int(value)
            else:
                setattr(getattr(head, head.WhichOneof("message") or ""), what, int(value))
        await self._arrive(Sent(ends["from"], ends["to"], kept.channel, head, kept.body))


class Scenario(Wires):
    """All commands, each a method."""

    async def do(self, command: str) -> list[str]:
        """Run one command, and return the lines of its record."""
        quietly = command.startswith("quietly ")
        self._lines = []
        for part in command.removeprefix("quietly ").split(";"):
            name, *words = part.split()
            await self._run(name, words)
        if quietly:
            self._lines = []
            await self.do_status()
        assert not self.ledger.broken, self.ledger.broken
        return self._lines

    async def _run(self, name: str, words: list[str]) -> None:
        command: Callable[..., object] = getattr(self, "do_" + name.replace("-", "_"))
        result = command(*words)
        if asyncio.iscoroutine(result):
            await result
        await self._settle()

    async def close(self) -> None:
        for broker in self._brokers.values():
            if broker.up:
                broker.disk.hangs = False
                broker.disk.finish()
                await broker.host.stop(transfer=False)
                await broker.store.close()

    # ---- brokers -----------------------------------------------------------------------------------------------

    async def do_brokers(self, count: str, segments: str = "") -> None:
        if segments:
            self._limits = Limits(segment_bytes=int(segments.removeprefix("segments=")))
        for broker_id in range(1, int(count) + 1):
            self._brokers[broker_id] = broker = ScriptedBroker(broker_id, self._links, self.ledger)
            await broker.open_store(self._limits, self._now)
        replicas = [Replica(b.id, b.store.identity.incarnation) for b in self._brokers.values()]
        self._first = make_first_entry(GROUP, replicas, 1_000_000)
        self._known[1, 0] = name_entry(self._first, self._names)
        for broker in self._brokers.values():
            await broker.start()
        self._link(list(self._brokers))
        await idle(self._links)
        for broker in self._brokers.values():
            await broker.open_group(self._first)
            broker.state.election_deadline = NEVER  # the script decides who campaigns first
            broker.seen = look(broker, self._names)
        await self.do_status()

    async def do_restart(self, number: str, apart: str = "") -> None:
        broker = self._brokers[int(number)]
        if apart:
            assert apart == "apart"
            broker.ledger = Apart()
        assert self._first is not None
        await broker.open_store(self._limits, self._now)
        await broker.start()
        self._link([broker.id])
        await idle(self._links)
        await broker.open_group(self._first)
        broker.seen = look(broker, self._names)
        group = broker.group
        self._lines.insert(
            0,
            f"{broker.id} is back as {name_replica(broker.state.me, self._names)}: {group.role.value}, "
            f"term {group.term}, last entry {group.log.last_index}, commit {group.commit_index}"
            + ("" if group.failure is None else f"; {group.failure}"),
        )

    async def do_crash(self, number: str) -> None:
        broker = self._brokers[int(number)]
        self._lost(broker.end())
        broker.files.kill()

    async def do_power_cut(self, number: str) -> None:
        await self.do_crash(number)
        self._brokers[int(number)].files.power_cut()

    async def do_wipe(self, number: str) -> None:
        broker = self._brokers[int(number)]
        if broker.up:
            await self.do_crash(number)
        broker.old_files = broker.files
        broker.files = FaultyFiles(random.Random(f"{number}/{len(broker.names)}"))

    async def do_swap(self, number: str) -> None:
        broker = self._brokers[int(number)]
        if broker.up:
            await self.do_crash(number)
        broker.files, broker.old_files = broker.old_files, broker.files

    async def do_forget(self, number: str) -> None:
        for path in VOTES:
            self._brokers[int(number)].files.remove(path)

    def do_trim(self, number: str, index: str) -> None:
        log = self._brokers[int(number)].group.log
        log.remove_before(int(index))
        self._tell(f"{number} removes its log before {log.first_index}")

    def do_damage(self, number: str) -> None:
        files = self._brokers[int(number)].files
        path = min(p for p in files.paths() if p.endswith(SEGMENT))
        files.flip_bit(path, len(files.content(path)) // 2)

    # ---- time and timers -----------------------------------------------------------------------------------------

    async def do_campaign(self, number: str) -> None:
        broker = self._brokers[int(number)]
        broker.state.election_deadline = self._now
        broker.state.env.wake()

    async def do_elect(self, number: str) -> None:
        asked = ("PreVote", "RequestVote", "Vote")
        for _ in range(ELECTIONS_MAX):
            await self.do_campaign(number)
            await self._settle()
            await self._deliver(lambda s: int(number) in (s.source, s.target) and kind_of(s) in asked, again=True)
            if self._brokers[int(number)].group.is_leader:
                return
        raise AssertionError(f"{number} was not elected")

    async def do_wait(self, seconds: str, delivering: bool = False) -> None:
        end = self._now + float(seconds)
        while self._now < end - STEP_S / 2:
            self._now += STEP_S
            for broker in self._brokers.values():
                if broker.up:
                    broker.clock.advance(self._now - broker.clock.monotonic())
            await self._settle()
            if delivering:
                await self._deliver(_selection(()), again=True)

    async def do_run(self, seconds: str) -> None:
        await self.do_wait(seconds, delivering=True)

    # ---- disks -----------------------------------------------------------------------------------------------------

    def do_hang(self, number: str) -> None:
        self._brokers[int(number)].disk.hangs = True

    def do_sync(self, number: str) -> None:
        self._brokers[int(number)].disk.finish()

    def do_unhang(self, number: str) -> None:
        disk = self._brokers[int(number)].disk
        disk.hangs = False
        disk.finish()

    # ---- writes and leadership transfers
    # ------------------------------------------------------------------------------------

    async def do_propose(self, number: str, *payloads: str) -> None:
        broker = self._brokers[int(number)]
        for word in payloads:
            payload, _, size = word.partition("*")
            try:
                position = broker.group.propose(
                    NewEntry(Kind.DATA, payload.ljust(int(size or 0), ".").encode(), record_count=1)
                )
            except TinymqError as error:
                self._tell(f"{number} refuses {payload}: {error.code}")
                continue
            broker.machine.waiting[position.index, position.term] = position
            await self._settle()

    def do_accept_loss(self, index: str) -> None:
        del self.ledger.chosen[GROUP][int(index) :]

    def do_force_leadership(self, number: str, term: str, *present: str) -> None:
        listed = [
            self._brokers[b].state.me if str(b) in present else Replica(b, bytes(16), 0) for b in sorted(self._brokers)
        ]
        try:
            self._brokers[int(number)].group.force_leadership(int(term), listed)
        except TinymqError as error:
            self._tell(f"{number} refuses to lead: {error.code}")

    def do_read(self, number: str) -> None:
        task = asyncio.get_running_loop().create_task(self._read(self._brokers[int(number)]))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _read(self, broker: ScriptedBroker) -> None:
        try:
            index = await broker.group.read_index(READ_S)
            self._tell(f"{broker.id} may read: all up to {index} is applied")
        except TinymqError as error:
            self._tell(f"{broker.id} may not read: {error.code}")

    def do_transfer(self, number: str, to: str, target: str) -> None:
        assert to == "to"
        begun = self._brokers[int(number)].host.transfer(GROUP, int(target))
        self._tell(f"{number} {'transfers' if begun else 'does not transfer'} its leadership to {target}")
