"""A small model of one group whose replicas acknowledge before or after the sync, by the setting that each knows.

The model has the state of a Raft replica, and takes random steps: entries, elections, changes of the setting that reach
one broker after the other, power cuts of any subset, faults that lose files or votes, disks that are replaced and come
back. It uses the product's decisions (automatic_recovery.py, quorum_loss.py, membership.py), and records which entries
a majority had synced when they were acknowledged. No leader, elected or recovered, may lack one of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.raft.values import GROUP
from tinymq.raft.rules.automatic_recovery import plan_recovery
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import ReplicaReport, can_win, forced_membership

MEMBERS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Item:
    """An entry. `number` identifies it; `config` is set for a CONFIG."""

    number: int
    term: int
    config: Membership | None = None


@dataclass(slots=True)
class Disk:
    """A data directory, as programs see it."""

    incarnation: bytes
    log: list[Item]
    count: int = 0
    fault_count: int = 0
    synced: int = 1  # entries that a power cut leaves
    lazy: bool = False  # what the mark says
    commit: int = 1  # as the mark knows it
    term: int = 0


@dataclass(slots=True)
class Node:
    """One broker's replica."""

    broker_id: int
    disk: Disk
    always: bool = False  # the newest setting that the replica knows
    up: bool = True
    commit: int = 1
    leads: bool = False
    first_of_term: int = 0
    match: dict[int, tuple[Replica, int, int]] = field(default_factory=dict)  # by whom, entries, of them synced

    @property
    def me(self) -> Replica:
        return Replica(self.broker_id, self.disk.incarnation, self.disk.count)

    @property
    def applied(self) -> Membership:
        return self._config(self.commit)

    @property
    def newest(self) -> Membership:
        return self._config(len(self.disk.log))

    def _config(self, length: int) -> Membership:
        return next(item.config for item in reversed(self.disk.log[:length]) if item.config is not None)

    def report(self) -> ReplicaReport:
        log = self.disk.log
        before = len(log)
        for at in range(self.commit, len(log)):
            config = log[at].config
            if config is not None and config.recovery_epoch > self.applied.recovery_epoch:
                before = at - 1
                break
        return ReplicaReport(
            replica=self.me,
            healthy=True,
            leads=self.leads,
            term=self.disk.term,
            last_term=log[-1].term,
            last_index=len(log),
            high_watermark=0,
            applied=self.applied,
            newest=self.newest,
            before_forced=(log[before - 1].term, before),
            fault_count=self.disk.fault_count,
        )


class Group:
    """Three replicas and everything that can happen to them."""

    def __init__(self, rng: random.Random, *, alter: bool = True, faults: bool = True) -> None:
        self._rng = rng
        self._alter = alter
        self._faults = faults
        self._numbers = 0
        self._incarnations = 0
        first = Membership(GROUP, 1, tuple(Replica(b, self._incarnation()) for b in MEMBERS))
        self._first = Item(0, 0, first)
        self.nodes = [Node(r.broker_id, Disk(r.incarnation, [self._first])) for r in first.replicas]
        self.safe: set[int] = set()  # numbers of entries that a majority had synced when they were committed
        self.acknowledged: set[int] = set()  # and of all that were committed and not lost by a revival
        self.faulty = False  # something happened that no setting allows
        self.recovered = 0
        self._old: list[tuple[Node, Disk]] = []

    def _incarnation(self) -> bytes:
        self._incarnations += 1
        return self._incarnations.to_bytes(16, "big")

    def step(self) -> None:
        """One thing happens."""
        steps = [self.write, self.write, self.replicate, self.replicate, self.replicate, self.elect, self.elect]
        steps += [self.relist, self.sync, self.power_cut, self.end, self.start, self.start, self.recover]
        steps += [self.alter] if self._alter else []
        if self._faults and self._rng.random() < 0.02:
            steps = [self.lose_files, self.lose_votes, self.replace_disk, self.return_disk, self.repair]
        self._rng.choice(steps)()

    # ---- Raft ----------------------------------------------------------------------------------------------

    def _up(self) -> list[Node]:
        return [node for node in self.nodes if node.up]

    def elect(self) -> None:
        up = self._up()
        if not up:
            return
        node, reports = self._rng.choice(up), [n.report() for n in up]
        if not can_win(node.report(), reports):
            return
        self._lead(node, 1 + max(n.disk.term for n in up))
        assert self.acknowledged <= {item.number for item in node.disk.log}, (
            "the elected leader lacks acknowledged entries"
        )

    def _lead(self, node: Node, term: int) -> None:
        for other in self._up():
            other.disk.term, other.leads = term, False
        node.leads, node.match = True, {}
        node.first_of_term = len(node.disk.log) + 1
        self._append(node, None)

    def _append(self, node: Node, config: Membership | None) -> None:
        self._numbers += 1
        node.disk.log.append(Item(self._numbers, node.disk.term, config))
        self._written(node)

    def _written(self, node: Node) -> None:
        if node.always:
            node.disk.synced = len(node.disk.log)
        else:
            node.disk.lazy = True

    def write(self) -> None:
        for node in self._up():
            if node.leads:
                self._append(node, None)

    def replicate(self) -> None:
        leaders = [node for node in self._up() if node.leads]
        if not leaders:
            return
        leader = self._rng.choice(leaders)
        node = self._rng.choice([n for n in self.nodes if n is not leader])
        if not node.up or node.disk.term > leader.disk.term:
            return
        node.disk.term, node.leads = leader.disk.term, False
        ours, theirs = leader.disk.log, node.disk.log
        same = 0
        while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
            same += 1
        end = self._rng.choice((len(ours), self._rng.randint(same, len(ours))))
        if end > same or len(theirs) > len(ours):
            del theirs[same:]
            node.disk.synced = min(node.disk.synced, same)
            theirs += ours[same:end]
            self._written(node)
        matching = min(len(theirs), max(same, end))
        leader.match[node.broker_id] = node.me, matching, min(node.disk.synced, matching)
        node.commit = max(node.commit, min(leader.commit, matching))
        # the highest commit index that any replica knows
        leader.commit = max(leader.commit, min(node.commit, matching))
        self._commit(leader)

    def _commit(self, leader: Node) -> None:
        length, disk = len(leader.disk.log), leader.disk
        held = {leader.broker_id: (leader.me, length, disk.synced), **leader.match}
        counted = [(n, s) for who, n, s in held.values() if leader.applied.has(who) and leader.newest.has(who)]
        quorum = leader.applied.quorum
        for at in range(leader.commit + 1, length + 1):
            if at < leader.first_of_term:
                continue
            if sum(n >= at for n, _ in counted) >= quorum:
                for index in range(leader.commit, at):
                    number = disk.log[index].number
                    self.acknowledged.add(number)
                    if sum(s > index for _, s in counted) >= quorum:
                        self.safe.add(number)
                leader.commit = at

    def relist(self) -> None:
        for leader in self._up():
            if leader.leads and leader.newest is leader.applied:
                for who, _, _ in leader.match.values():
                    if leader.applied.may_list(who):
                        self._append(leader, leader.applied.replacing([who]))
                        break

    # ---- ends and settings ---------------------------------------------------------------------------------

    def alter(self) -> None:
        node = self._rng.choice(self.nodes)
        node.always = not node.always

    def sync(self) -> None:
        node = self._rng.choice(self.nodes)
        if node.up:
            node.disk.synced, node.disk.commit = len(node.disk.log), node.commit
            if node.always:
                node.disk.lazy = False

    def end(self) -> None:
        self._down(self._rng.choice(self.nodes))

    def _down(self, node: Node) -> None:
        node.up = node.leads = False
        node.match = {}

    def power_cut(self) -> None:
        for node in self._rng.sample(self.nodes, self._rng.choice((1, 2, 2, 3))):
            self._down(node)
            disk = node.disk
            del disk.log[self._rng.randint(disk.synced, len(disk.log)) :]
            disk.commit = min(disk.commit, len(disk.log))
            if disk.lazy:
                disk.count, disk.lazy = disk.count + 1, False

    def start(self) -> None:
        self._start(self._rng.choice(self.nodes))

    def _start(self, node: Node) -> None:
        if not node.up:
            node.up = True
            node.disk.synced = len(node.disk.log)
            node.commit = min(node.disk.commit, len(node.disk.log))

    # ---- faults --------------------------------------------------------------------------------------------

    def _stopped(self) -> Node | None:
        down = [node for node in self.nodes if not node.up]
        return self._rng.choice(down) if down else None

    def lose_files(self) -> None:
        """Restart one replica, or several at once."""
        down = [node for node in self.nodes if not node.up]
        for node in self._rng.sample(down, self._rng.randint(min(1, len(down)), len(down))):
            self.faulty = True
            disk = node.disk
            disk.count += 1
            disk.fault_count = disk.count
            disk.log, disk.synced, disk.commit, disk.lazy = [self._first], 1, 1, False

    def lose_votes(self) -> None:
        if (node := self._stopped()) is not None:
            self.faulty = True
            node.disk.count += 1
            node.disk.fault_count = node.disk.count

    def replace_disk(self) -> None:
        if (node := self._stopped()) is not None:
            self.faulty = True
            self._old.append((node, node.disk))
            node.disk = Disk(self._incarnation(), [self._first])

    def return_disk(self) -> None:
        """A replaced disk comes back. If its replica is retired, it takes another count."""
        for node, disk in self._old:
            if not node.up:
                self._old.remove((node, disk))
                node.disk = disk
                disk.count += 1
                disk.fault_count = disk.count
                return

    def repair(self) -> None:
        """A damaged log moves to quarantine once a leader with another majority permits it (raft/host/repair.py)."""
        for leader in [node for node in self._up() if node.leads and node.commit >= node.first_of_term]:
            node = self._rng.choice([n for n in self.nodes if n is not leader])
            known = leader.disk.log.index(next(i for i in leader.disk.log if i.config == leader.applied)) + 1
            sure = [
                other for other in self._up()
                if other is not node and other.commit >= known and leader.applied.has(other.me)
                and other.disk.term == leader.disk.term
            ]  # fmt: skip
            if node.up and len(sure) >= leader.applied.quorum:
                self.faulty = True
                disk = node.disk
                disk.count, disk.fault_count = disk.count + 1, 0
                disk.log, disk.synced, disk.commit, disk.lazy = [self._first], 1, 1, False
                node.commit = 1
                return

    # ---- automatic quorum recovery -------------------------------------------------------------------------

    def recover(self, ends: float = 0.3) -> bool:
        """Ask all members. The survivor may fail right after it starts to lead."""
        up = self._up()
        if len(up) < len(MEMBERS):
            return False
        found = plan_recovery([n.report() for n in up], MEMBERS)
        if found is None:
            return False
        survivor = next(n for n in up if n.broker_id == found.survivor.broker_id)
        log = {item.number for item in survivor.disk.log}
        assert self.safe <= log, f"recovered without {self.safe - log}, although a majority had synced it"
        forced = forced_membership(survivor.newest, survivor.broker_id, found.replicas)
        self._lead(survivor, found.term)
        self._append(survivor, forced)
        if self._rng.random() < ends:
            self._down(survivor)
            return False
        self.recovered += 1
        self._take_along(survivor, forced)
        self.acknowledged &= {item.number for item in survivor.disk.log}
        return True

    def _take_along(self, survivor: Node, forced: Membership) -> None:
        """A majority gets the CONFIG, and the membership in that CONFIG commits it."""
        takes = self._rng.sample([n for n in self.nodes if n is not survivor], self._rng.choice((1, 2)))
        for node in takes:
            node.disk.log = list(survivor.disk.log)
            node.disk.synced = len(node.disk.log) if node.always else 1
            node.disk.lazy = node.disk.lazy or not node.always
        survivor.commit = len(survivor.disk.log)
        for node in takes:
            node.commit = survivor.commit

    def settle(self) -> bool:
        """Does a replica lead, or can one be elected, when all replicas are up and nothing else happens?"""
        for node in self.nodes:
            self._start(node)
        reports = [n.report() for n in self.nodes]
        leads = any(n.leads and n.applied.quorum <= sum(n.applied.has(o.me) for o in self.nodes) for n in self.nodes)
        return leads or any(can_win(r, reports) for r in reports) or self.recover(ends=0.0)
