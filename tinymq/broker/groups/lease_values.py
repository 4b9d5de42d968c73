"""The values that the leases of a queue group are made of: settings, grants, leases, sessions, verdicts, proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tinymq.base.group_config import Ordering
from tinymq.broker.state.queue_group import Charge, QueueGroup


class AppliedQueue(Protocol):
    """What is applied of a group: the leader's replica goes on applying to it."""

    @property
    def group(self) -> QueueGroup: ...
    @property
    def position(self) -> int:
        """Of the group's cursor, and never below the log start: everything below it is settled."""
        ...


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a group that its leases depend on, in seconds and records."""

    lease_s: float = 30.0
    ask_s: float = 2.0
    session_s: float = 10.0
    rejoin_s: float = 3.0
    leased_max: int = 10_000
    waiting_max: int = 10_000
    deliveries_max: int = 0  # a record with so many failed deliveries is to be buried; 0: never
    keyed: bool = False  # the records of a key wait for each other
    retry_ms: tuple[int, ...] = ()  # after the first, second ... failed delivery; the last one for all further ones

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
        """Whether leases that were granted under the other settings may go on under these (LEASE_SETTINGS)."""
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
    """What a seek, or a loss of records, replaces: grants of another era are over."""

    history: int
    generation: int


class Grant(NamedTuple):
    """One delivery of a record to a worker."""

    offset: int
    term: int  # with `number`, newer than every earlier grant of the record
    number: int
    delivery: int
    era: Era
    started: bool  # it counts as started at once


@dataclass(slots=True)
class Lease:
    """A granted record that is not settled."""

    session: bytes
    grant: Grant
    granted_s: float
    until_s: float
    started: bool
    asked_until_s: float | None = None  # the worker was asked whether it still works on the record


@dataclass(slots=True)
class Session:
    """A worker that has attached to this leader."""

    connection: int  # messages of an older connection are not heard
    heard_s: float
    closed_s: float | None = None


class Verdict(Enum):
    """The answer to a settlement."""

    DONE = "done"  # it is settled, or nothing more has to be done
    PROPOSED = "proposed"  # it is answered once its proposal is applied
    LOST = "lost"  # LeaseLost: the worker does not hold the record
    LATER = "later"  # ask again: another settlement is under way, or the worker has to attach first


class Proposal(NamedTuple):
    """What the leader has to append, in one command of its kind. `blocked` are the offsets that wait for it."""

    era: Era  # in which its records were granted: after a seek the command changes nothing
    acks: tuple[int, ...] = ()
    charges: tuple[Charge, ...] = ()
    opens: bytes = b""  # a session
    ends: bytes = b""  # a session, with `charges` and `returned`
    returned: tuple[int, ...] = ()
    granted_below: int = 0

    @property
    def blocked(self) -> tuple[int, ...]:
        return (*self.acks, *(charge.offset for charge in self.charges), *self.returned)
