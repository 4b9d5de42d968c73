"""The relay: sends the rows of an outbox in transactions of the log, each row exactly once.

After any error, and after its own crash, it begins in the same way: take the transactional id, ask what became of the
newest transaction, and remove or unmark the rows that are marked. docs/outbox.md describes the protocol.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tinymq.base.errors import (
    Denied,
    Fenced,
    InvalidConfig,
    InvalidRequest,
    NotFound,
    OutOfOrderSequence,
    TinymqError,
    TransactionAborted,
)
from tinymq.base.extras import required
from tinymq.outbox.errors import OutboxUnresolved
from tinymq.outbox.record import OutboxRow, headers_of
from tinymq.outbox.rules import Decision, TransactionMark, next_rows_max
from tinymq.outbox.store import ActiveRelay, Backlog, RelayStore

with required("tinymq.outbox"):
    from sqlalchemy import Engine
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from tinymq.client import Client, Transaction, TransactionalIdDescription

ABORT_S = 1.0
BEATS = 3  # signs of life per lease


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """The settings of a relay.

    rows_max, bytes_max: of one transaction; a row that is larger goes alone. poll_ms: between two looks into an empty
    table. lease_ms: a relay that has shown no sign of life for so long is replaced by another that waits; it should be
    well above what one transaction takes. retry_ms: after an error. count_ms: between two counts of the rows that wait,
    for RelayStatus; each reads the whole table.
    """

    rows_max: int = 500
    bytes_max: int = 4 << 20
    poll_ms: float = 100
    lease_ms: float = 10_000
    retry_ms: float = 1_000
    count_ms: float = 5_000

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rows_max", 1, 10_000), ("bytes_max", 1, 64 << 20), ("poll_ms", 1, 60_000),
            ("lease_ms", 100, 600_000), ("retry_ms", 1, 60_000), ("count_ms", 1, 3_600_000),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise InvalidConfig(f"{name}={getattr(self, name)!r}", hint=f"{least} to {most}")


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """How far a relay is."""

    state: str = "starting"  # then "standby" (another relay works), "working", "retrying" or "stopped"
    transactional_id: str = ""
    sent: int = 0  # rows, since this relay started
    transactions: int = 0
    recovered: int = 0  # marked rows of an earlier relay that were in the log already
    error: str = ""  # why it retries
    failures: int = 0  # times that an error made it begin again, since it started
    backlog: Backlog = field(default_factory=Backlog)  # at its newest count


class Relay:
    """Sends the rows of one database, until it is stopped.

        relay = Relay(create_engine("postgresql+psycopg://app@db/shop"), lambda: Client("localhost:7070"))
        relay.run(stop)  # a threading.Event

    Several may run: one works, and the others wait. The engine is a synchronous one. The transactional id is made at
    the first start, and kept in the database.
    """

    def __init__(
        self, engine: Engine, connect: Callable[[], Client], config: RelayConfig | None = None,
        on_status: Callable[[RelayStatus], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.status = RelayStatus()
        self._store = RelayStore(engine)
        self._connect = connect
        self._config = config or RelayConfig()
        self._on_status = on_status
        self._rows_max = self._config.rows_max
        self._owner: tuple[int, int] | None = None
        self._counted_s = -math.inf  # the monotonic time of the newest count of the rows

    def run(self, stop: threading.Event) -> None:
        """Relay until `stop` is set; the transaction under way ends first. Database and brokers may come and go.

        Raises NotFound (no tables), OutboxUnresolved, and what the database raises if it cannot be reached at first.
        """
        self._store.check()
        with self._connect() as mq:
            while not stop.is_set():
                try:
                    self._count()
                    seen = self._turn(stop)
                    if seen is not None:
                        self._take(mq, seen)
                        self._work(mq, stop)
                except OutboxUnresolved:
                    raise
                except Fenced:
                    self._tell(state="standby", error="")
                except (TinymqError, DBAPIError) as error:
                    self._tell(state="retrying", error=_in_one_line(error), failures=self.status.failures + 1)
                    stop.wait(self._config.retry_ms / 1000)
        self._tell(state="stopped", error="")

    # ---- one relay of several -----------------------------------------------------------------------------------

    def _turn(self, stop: threading.Event) -> ActiveRelay | None:
        """Wait until no other relay works. None: `stop` is set."""
        lease_s = self._config.lease_ms / 1000
        seen, since_s = self._store.standing(), time.monotonic()
        while not (seen.released or seen.owner is None or seen.owner == self._owner):
            self._tell(state="standby", transactional_id=seen.transactional_id, error="")
            if stop.wait(lease_s / BEATS):
                return None
            self._count()
            before, seen = seen, self._store.standing()
            if seen.beat != before.beat:
                since_s = time.monotonic()
            elif time.monotonic() - since_s >= lease_s:
                break
        return seen

    def _take(self, mq: Client, seen: ActiveRelay) -> None:
        """Fence the previous relay, and find out what became of its newest transaction."""
        found = _take_id(mq, seen)
        owner = found.producer_id, found.epoch
        recovered, _ = self._store.take(seen, owner, decision_of(found))
        self._owner = owner
        self._tell(
            state="working", transactional_id=seen.transactional_id, recovered=self.status.recovered + recovered,
            error=self.status.error if self._rows_max < self._config.rows_max else "",
        )  # fmt: skip

    # ---- the work -----------------------------------------------------------------------------------------------

    def _work(self, mq: Client, stop: threading.Event) -> None:
        beat_s = self._config.lease_ms / 1000 / BEATS
        beaten_s = time.monotonic()
        while not stop.is_set():
            self._count()
            if self._store.waiting():
                self._send(mq)
                beaten_s = time.monotonic()
                continue
            self._tell(backlog=Backlog())
            if time.monotonic() - beaten_s >= beat_s:
                self._store.beat()
                beaten_s = time.monotonic()
            stop.wait(self._config.poll_ms / 1000)
        self._store.release()

    def _send(self, mq: Client) -> None:
        """Send the next rows, in one transaction. After an error the rows keep their mark, and `_take` judges them."""
        assert self._owner is not None, "only a relay that has taken over sends"
        tx = mq.transaction(self.status.transactional_id)
        tx.begin()
        mark = TransactionMark(*self._owner, tx.number)
        rows: list[OutboxRow] = []
        try:
            rows = self._store.mark(mark, self._rows_max, self._config.bytes_max)
            self._stage(tx, rows)
            tx.commit(wait="decided")
        except BaseException as error:
            with suppress(TinymqError):
                tx.abort(timeout=ABORT_S)  # the client begins no other transaction while this one is open
            if isinstance(error, TinymqError) and refuses(error):
                self._refused(rows, error)
            raise
        self._store.remove(mark, rows)
        self._rows_max = next_rows_max(self._rows_max, self._config.rows_max, refused=False)
        self._tell(sent=self.status.sent + len(rows), transactions=self.status.transactions + 1, error="")

    @staticmethod
    def _stage(tx: Transaction, rows: list[OutboxRow]) -> None:
        for row in rows:
            tx.send(
                row.topic, row.value, key=row.key, headers=headers_of(row.headers) or None,
                timestamp=row.timestamp_us, partition=row.partition,
            )  # fmt: skip

    def _refused(self, rows: list[OutboxRow], error: TinymqError) -> None:
        """A row can never be sent as it is. No later row may overtake it, so name it and keep trying."""
        self._rows_max = next_rows_max(min(self._rows_max, max(1, len(rows))), self._config.rows_max, refused=True)
        if len(rows) == 1:
            error.add_note(f"row {rows[0].id} of the outbox, for topic {rows[0].topic!r}")

    def _count(self) -> None:
        """Count the rows that wait, once in a while."""
        now_s = time.monotonic()
        if now_s - self._counted_s >= self._config.count_ms / 1000:
            self._counted_s = now_s
            self._tell(backlog=self._store.backlog())

    def _tell(self, **changes: object) -> None:
        before = self.status
        self.status = replace(before, **changes)  # type: ignore[arg-type]
        if self.status != before:
            self._on_status(self.status)


def resolve(engine: Engine, mq: Client, *, sent: bool) -> int:
    """Treat every marked row as sent, or as unsent: after OutboxUnresolved. Returns how many rows there were.

    Stop the relays first. Raises NotFound (no tables), Fenced (a relay works).
    """
    store = RelayStore(engine)
    store.check()
    seen = store.standing()
    found = _take_id(mq, seen)
    return store.resolve(seen, (found.producer_id, found.epoch), decision_of(found), sent=sent)


def _take_id(mq: Client, seen: ActiveRelay) -> TransactionalIdDescription:
    tx = mq.transaction(seen.transactional_id)
    try:
        return tx.take_id()
    finally:
        tx.abort()  # it has not begun: the client forgets it


def decision_of(found: TransactionalIdDescription) -> Decision | None:
    """The newest decision on a transactional id, known after it was taken."""
    if found.decided_number is None or found.committed is None:
        return None
    return Decision(found.producer_id, found.decided_number, found.committed)


def refuses(error: TinymqError) -> bool:
    """Whether the same rows would be refused again."""
    if isinstance(error, Fenced | TransactionAborted | OutOfOrderSequence):
        return False
    return isinstance(error, InvalidRequest | NotFound | Denied)


def _in_one_line(error: Exception) -> str:
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
    return " ".join(f"{notes}{error}".split())[:500]
