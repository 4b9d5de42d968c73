"""Joins the workers of queue groups and the dead letters, which know nothing of each other."""

from __future__ import annotations

from tinymq.base.clock import Clock
from tinymq.broker.dead_letters.burials import Fate
from tinymq.broker.dead_letters.dead_letters import DeadLetters
from tinymq.broker.dead_letters.letter import DeadLetter
from tinymq.broker.dead_letters.story import RecordMemory
from tinymq.broker.partition.partition import Partition
from tinymq.broker.work.group_leader import GroupLeader
from tinymq.broker.work.last_failures import DeadRecord, FailureCause
from tinymq.broker.work.workers import Workers


def join(workers: Workers, dead_letters: DeadLetters, clock: Clock) -> None:
    """Bury the dead records of GroupLeaders, and let stories show what GroupLeaders have in memory."""

    def bury(leader: GroupLeader) -> None:
        for dead in leader.dead():
            fate = dead_letters.burials.bury(leader.partition, leader.name, letter_of(dead))
            if fate is not Fate.BURYING:
                break  # the next call, soon, says it again

    def remember(partition: Partition, group: str, offset: int) -> RecordMemory | None:
        leader = workers.leader(partition.group.id, group)
        return None if leader is None else memory_of(leader, offset, clock.monotonic())

    workers.on_dead = bury
    dead_letters.stories.remember = remember


def letter_of(dead: DeadRecord) -> DeadLetter:
    """A dead record as the dead letters have it. The reason is the last line of what its worker said, unless the last
    delivery ended without a word."""
    known = dead.failure
    error = known.error.strip() if known is not None else ""
    reason = known.reason if known is not None else ""
    cause = FailureCause.REJECT if dead.rejected else known.cause if known is not None else None
    return DeadLetter(
        offset=dead.offset,
        reason=reason or ("rejected" if dead.rejected else f"{dead.deliveries} deliveries failed"),
        cause=cause.value if cause is not None else "",
        deliveries=dead.deliveries,
        traceback=error if "\n" in error else "",
        first_failure_us=known.first_us if known is not None else 0,
        last_failure_us=known.last_us if known is not None else 0,
    )


def memory_of(leader: GroupLeader, offset: int, now_s: float) -> RecordMemory:
    """The state of a record in a leader's memory."""
    lease, failed = leader.leases.leases.get(offset), leader.failures.get(offset)
    at = leader.attachments.get(lease.session) if lease is not None else None
    worker = at.worker if at is not None else lease.session.hex()[:8] if lease is not None else ""
    return RecordMemory(
        worker=worker,
        lease_left_ms=max(0, int((lease.until_s - now_s) * 1000)) if lease is not None else 0,
        started=lease is not None and lease.started,
        reason=failed.reason if failed is not None else "",
        failed_by=failed.worker if failed is not None else "",
    )
