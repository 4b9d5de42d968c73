"""The tables of KIP-848 (joining, revocation, fencing, static members, leaving) as transcripts that a person can read.

A file of scenarios/ is a paragraph, then commands, each with what came of it, indented. They move the rules of a
coordinator and the cursors of three real partitions. `python -m tests.broker.coordinator.test_scenarios` writes the
answers again: read the difference.

    join A                the first heartbeat of a member; `join A static`: it has an instance id
    coordinate            the coordinator takes its next step, and commits it
    tell A                the newest assignment arrives at A, which opens the cursors of its new partitions
    let_go A 1            A has no record of partition 1 in hand any more
    beat A                A's heartbeat, with what it owns
    commit A 1 5          A commits the offset 5 of partition 1
    late A                the coordinator waits no longer for what A was asked to let go
    silent A              A's session ends, because nothing was heard of it
    leave A               A leaves
    restart A             another process with A's instance id, which has nothing in hand
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.values import Applied, makes
from tinymq.base.errors import Fenced
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator import rules
from tinymq.broker.coordinator.assignors import balanced
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.members.group_members import COUNTER_BITS, Member, Members, MembersDelta, changed
from tinymq.proto import partition_pb2 as pb

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
GROUP, ID, PARTITIONS, RECORDS = "g", 7, 3, 10
COUNTER = (1 << COUNTER_BITS) - 1


class Process:
    """A member as its own process knows it."""

    def __init__(self, session: bytes, *, static: bool) -> None:
        self.member = Member(session, static=static)
        self.owned: dict[int, int] = {}  # epochs, by partition
        self.asked: set[int] = set()  # to let go, and still in hand
        self.taken = 0
        self.beats = 0


class Play:
    """One scenario."""

    def __init__(self) -> None:
        self.state = Members(group_id=ID)
        self.places = [PartitionId(b"t" * 16, number) for number in range(PARTITIONS)]
        self.partitions = [Applied() for _ in self.places]
        for partition in self.partitions:
            partition.run(makes(ID, GROUP), version=2)
            partition.batch(RECORDS)
        self.processes: dict[str, Process] = {}
        self.sessions = 0

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        return [*getattr(self, f"do_{verb}")(*words), self._shown()]

    def do_join(self, name: str, kind: str = "") -> list[str]:
        self.sessions += 1
        session = f"{name}{self.sessions}".encode().ljust(16, b".")
        self.processes[name] = Process(session, static=kind == "static")
        return self.do_beat(name)

    def do_restart(self, name: str) -> list[str]:
        before = self.processes[name]
        self.processes[f"{name}'"] = before  # the process before, if it still lives
        return self.do_join(name, "static" if before.member.static else "")

    def do_beat(self, name: str) -> list[str]:
        process = self.processes[name]
        process.beats += 1
        owned = {self.places[number]: epoch for number, epoch in process.owned.items()}
        beat = MemberHeartbeat(
            name.rstrip("'"), process.member, process.beats, owned, process.taken, joined=process.beats > 1
        )
        try:
            change = rules.heard(self.state, beat)
        except Fenced:
            return [f"{name} is fenced: a later process has its instance id"]
        self._commit(change)
        lost = rules.lost(self.state, beat.name, process.member.session, owned)
        for place in lost:
            process.owned.pop(place.partition)
        return [f"{name} has lost {place.partition}" for place in lost]

    def do_coordinate(self) -> list[str]:
        change = rules.rebalanced(self.state, self.places, balanced)
        self._commit(change)
        return [] if change else ["nothing to do"]

    def do_tell(self, name: str) -> list[str]:
        process, lines = self.processes[name], []
        for place, at in sorted(self.state.of(name).items()):
            number = place.partition
            if at.revoking:
                process.asked.add(number)
                lines.append(f"{name} is asked to let go of {number}")
            elif process.owned.get(number) != at.epoch:
                process.owned[number] = at.epoch
                opened = pb.OpenChannel(
                    channel=GROUP, epoch=at.epoch, kind=pb.STREAM, group_id=ID, session=process.member.session
                )
                lines.append(f"{name} opens {number}: {self._outcome(number, pb.Command(open=opened))}")
        process.taken = max(process.taken, self.state.epoch)
        return lines or [f"{name} hears nothing new"]

    def do_let_go(self, name: str, number: str) -> list[str]:
        process = self.processes[name]
        process.asked.discard(int(number))
        del process.owned[int(number)]
        return []

    def do_commit(self, name: str, number: str, offset: str) -> list[str]:
        epoch = self.processes[name].owned[int(number)]
        commit = pb.Commit(channel=GROUP, epoch=epoch, generation=1, offset=int(offset), kind=pb.STREAM, group_id=ID)
        return [self._outcome(int(number), pb.Command(commit=commit))]

    def do_late(self, name: str) -> list[str]:
        asked = {place: at.epoch for place, at in self.state.of(name).items() if at.revoking}
        self._commit(rules.freed(self.state, asked))
        return []

    def do_silent(self, name: str) -> list[str]:
        self._commit(rules.left(self.state, [name]))
        return []

    def do_leave(self, name: str) -> list[str]:
        self._commit(rules.closed(self.state, name.rstrip("'"), self.processes[name].member.session))
        return []

    def _commit(self, change: MembersDelta) -> None:
        if change:
            self.state = changed(self.state, change)

    def _outcome(self, number: int, command: pb.Command) -> str:
        (outcome,) = self.partitions[number].run(command, version=2)
        return outcome.error.code if outcome.error is not None else f"from {outcome.position}"

    def _shown(self) -> str:
        parts = []
        for name in sorted(self.state.members):
            owned = [
                f"{place.partition} (epoch {at.epoch & COUNTER}{', leaving' if at.revoking else ''})"
                for place, at in sorted(self.state.of(name).items())
            ]
            parts.append(f"{name}: {', '.join(owned) or '-'}")
        free = [str(place.partition) for place in self.places if place not in self.state.owned]
        return "; ".join([*parts, f"free: {', '.join(free) or '-'}"])


def played(text: str) -> str:
    """The transcript, with the answers as they are."""
    paragraph, _, rest = text.partition("\n\n")
    play, lines = Play(), [paragraph, ""]
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            lines += [line, *(f"    {told}" for told in play.run(line))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_transcript_is_as_it_is(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_there_are_scenarios_of_each_row() -> None:
    rows = {"joining", "revocation", "fencing", "static_members", "late_heartbeats", "leaving"}
    assert {path.stem for path in FILES} == rows


if __name__ == "__main__":
    for each in FILES:
        each.write_text(played(each.read_text()))
