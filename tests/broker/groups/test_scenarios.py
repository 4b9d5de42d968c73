"""The tables of KIP-932 (acknowledge, release, reject, lock expiry, fencing) as transcripts that a person can read.

A file of scenarios/ is a paragraph, then commands, each with what came of it, indented. They move the rules of leases
on a real partition's state with six records. `python -m tests.broker.groups.test_scenarios` writes the answers again:
read the difference.

    attach A              a worker attaches, or attaches again with all that it holds
    grant A 2             it gets up to two records
    start A 0             it begins with record 0; so do ack, nack, reject, release and extend
    wait 31               seconds pass; leases that ran out are asked about, or end
    leave A               its session ends
    leader                another leader, whose memory is empty
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.groups.test_queue_leases_model import RECORDS, Replica, World
from tinymq.broker.groups.lease_values import Grant
from tinymq.broker.state.queue_group import REJECTED

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


class Play:
    """One scenario."""

    def __init__(self) -> None:
        self.world = World(0)
        self.held: dict[str, dict[int, Grant]] = {}
        self.connections: dict[str, int] = {}

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        told = getattr(self, f"do_{verb}", None)
        lines = told(*words) if told is not None else self._settle(verb, *words)
        while True:
            self.world.commit()
            if not self.world.newest.under_way:
                return [*lines, self._state()]

    def do_attach(self, name: str) -> list[str]:
        held = self.held.setdefault(name, {})
        self.connections[name] = self.connections.get(name, 0) + 1
        lost = self.world.newest.leases.attach(
            _session(name), self.connections[name], list(held.values()), self.world.now_s
        )
        for offset in lost:
            del held[offset]
        return [f"{name} lost {offset}" for offset in lost]

    def do_grant(self, name: str, most: str) -> list[str]:
        leases, lines = self.world.newest.leases, []
        for _ in range(2):  # the first time, the mark below which records are granted is on its way
            found = leases.grant(_session(name), int(most), RECORDS, self.world.log.now_us, self.world.now_s)
            self.world.commit()
            for grant in found:
                self.held[name][grant.offset] = grant
                self.world.delivered.add((grant.era.generation, grant.offset))
                lines.append(f"{name} has {grant.offset}, delivery {grant.delivery}")
            if found:
                break
        return lines or [f"{name} gets nothing"]

    def do_wait(self, seconds: str) -> list[str]:
        self.world.now_s += float(seconds)
        for name, number in self.connections.items():
            self.world.newest.leases.hear(_session(name), number, self.world.now_s)
        asks = self.world.newest.leases.expire(self.world.now_s).asked
        return [f"{_name(session)} is asked about {grant.offset}" for session, grant in asks]

    def do_leave(self, name: str) -> list[str]:
        self.world.newest.leases.end_session(_session(name))
        return []

    def do_leader(self) -> list[str]:
        self.world.term += 1
        self.world.leaders[self.world.term] = Replica(self.world, self.world.term)
        return []

    def _settle(self, verb: str, name: str, offset: str) -> list[str]:
        leases, grant = self.world.newest.leases, self.held[name][int(offset)]
        session, number, now_s = _session(name), self.connections[name], self.world.now_s
        if verb in ("start", "nack", "reject"):
            for delivery in (grant.delivery, grant.delivery | REJECTED):
                self.world.started.add((grant.era.generation, grant.offset, delivery))
        verdict = {
            "ack": lambda: leases.ack(session, number, grant, now_s),
            "nack": lambda: leases.nack(session, number, grant, 0, now_s),
            "reject": lambda: leases.reject(session, number, grant, now_s),
            "release": lambda: leases.release(session, number, grant, now_s),
            "extend": lambda: leases.extend(session, number, grant, False, now_s),
            "start": lambda: leases.extend(session, number, grant, True, now_s),
        }[verb]()
        return [verdict.value]

    def _state(self) -> str:
        replica = self.world.newest
        leased = [f"{offset} {_name(lease.session)}" for offset, lease in sorted(replica.leases.leases.items())]
        failed = [
            f"{offset} {'rejected' if failure.deliveries & REJECTED else failure.deliveries}"
            for offset, failure in sorted(replica.group.failures.items())
        ]
        return f"from {replica.position}; leased: {', '.join(leased) or '-'}; failed: {', '.join(failed) or '-'}"


def _session(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def _name(session: bytes) -> str:
    return session.rstrip(b".").decode()


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
    assert {path.stem for path in FILES} == {"acknowledge", "fencing", "lock_expiry", "reject", "release"}


if __name__ == "__main__":
    for each in FILES:
        each.write_text(played(each.read_text()))
