"""The values that the leases of a queue group are made of: settings, grants, leases, sessions, verdicts, proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tinymq.base.group_config import Ordering
from tinymq.broker.state.queue_group import Charge, QueueGroup


class AppliedQueue(Protocol):
    """The applied state of a group, which changes as the leader's replica applies entries."""

    @property
    def group(self) -> QueueGroup: ...
    @property
    def position(self) -> int:
        """The position of the group's cursor, never below the log start. All records below it are settled."""
        ...


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a group on which its leases depend, in seconds and records."""

    lease_s: float = 30.0
    ask_s: float = 2.0
    session_s: float = 10.0
    rejoin_s: float = 3.0
    leased_max: int = 10_000
    waiting_max: int = 10_000
    deliveries_max: int = 0  # failed deliveries after which a record is buried; 0: no limit
    keyed: bool = False  # whether records with the same key are delivered one at a time, in order
    retry_ms: tuple[int, ...] = ()  # delay after the first, second ... failed delivery; the last one repeats

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> QueueSettings:
        """The settings of a group's record (tinymq/base/group_config.py)."""
        retry_ms: tuple[int, ...] = config["retry_ms"]
        return cls(
            lease_s=config["lease_ms"] / 1000,
            ask_s=config["ask_ms"] / 1000,
            session_s=config["session_ms"] / 1000,
            rejoin_s=config["rejoin_ms"] / 1000,
            leased_max=config["leased_max"],
            waiting_max=config["waiting_max"],
            deliveries_max=config["deliveries_max"] or len(retry_ms) + 1,
            keyed=config["ordering"] is Ordering.KEY,
            retry_ms=retry_ms,
        )

    def agrees_with(self, other: QueueSettings) -> bool:
        """Whether leases that were granted under `other` stay valid under these settings (LEASE_SETTINGS)."""
        return (self.lease_s, self.ask_s, self.session_s, self.rejoin_s, self.keyed) == (
            other.lease_s, other.ask_s, other.session_s, other.rejoin_s, other.keyed,
        )  # fmt: skip

    @property
    def held_max(self) -> int:
        """How many records may wait for earlier ones of their keys: half of the window."""
        return max(1, self.leased_max // 2)

    def delay_ms(self, delivery: int, jitter: float) -> int:
        """The delay after the failure of a delivery. `jitter`, from 0 to 1, moves it by up to 10 % either way."""
        if not self.retry_ms:
            return 0
        delay = self.retry_ms[min(delivery, len(self.retry_ms)) - 1]
        return int(delay * (0.9 + 0.2 * jitter))


class Era(NamedTuple):
    """The span in which grants are valid. A seek, or a loss of records, begins a new era and ends all grants."""

    history: int  # term of the log's newest recovery
    generation: int  # of the group's cursor


class Grant(NamedTuple):
    """One delivery of a record to a worker."""

    offset: int
    term: int  # of the leader that granted it; (term, number) rises from grant to grant of a record
    number: int
    delivery: int  # 1 for the first delivery of the record
    era: Era
    started: bool  # whether the record counts as started as soon as it is granted


def has_settled(applied: AppliedQueue, era: Era, grant: Grant) -> bool:
    """Whether an ack of this grant has succeeded if it was sent, or would succeed now without an effect.

    By the applied state: a pending ack may be lost with this leader. In another era than that of the leader the record
    may be settled although the ack of this grant never counted.
    """
    return grant.era == era and applied.group.is_settled(grant.offset, applied.position)


@dataclass(slots=True)
class Lease:
    """A granted record that is not settled."""

    session: bytes
    grant: Grant
    granted_s: float  # monotonic time of the grant, as are the other times
    until_s: float  # when the lease runs out
    started: bool  # whether the worker has begun to process the record
    asked_until_s: float | None = None  # deadline for the worker to extend a lease that ran out; None: not asked yet


@dataclass(slots=True)
class Session:
    """A worker that has attached to this leader."""

    connection: int  # the newest one; messages of an older connection are ignored
    heard_s: float  # monotonic time of the newest message
    closed_s: float | None = None  # when the connection ended; None: it is open


class SettlementResult(Enum):
    """The answer to a settlement."""

    DONE = "done"  # the record is settled already, or the verb needs no entry in the log
    PROPOSED = "proposed"  # the answer follows once the proposal is applied
    LOST = "lost"  # LeaseLost: the worker does not hold the record
    LATER = "later"  # ask again: another settlement is under way, or the worker has to attach first


class Proposal(NamedTuple):
    """One command that the leader has to append. The records at `blocked` are not granted before it is applied."""

    era: Era  # in which the records were granted; in a later era the command changes nothing
    acks: tuple[int, ...] = ()  # offsets to settle
    charges: tuple[Charge, ...] = ()  # deliveries that failed
    opens: bytes = b""  # id of a session that begins
    ends: bytes = b""  # id of a session that ends, together with `charges` and `returned`
    returned: tuple[int, ...] = ()  # offsets that the ended session held and had not started
    granted_below: int = 0  # new mark; 0: the mark stays
    staged: tuple[int, ...] = ()  # offsets whose acks a transaction stages; its command is appended already

    @property
    def blocked(self) -> tuple[int, ...]:
        return (*self.acks, *(charge.offset for charge in self.charges), *self.returned, *self.staged)
