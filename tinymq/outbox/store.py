"""The statements by which a relay reads and writes the database. Each method is one database transaction.

Every change first updates the single row of the relay's table where it names this relay. So a relay that another has
replaced changes nothing, and the changes of two relays wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tinymq.base.errors import Fenced, NotFound
from tinymq.base.extras import required
from tinymq.outbox.errors import OutboxUnresolved
from tinymq.outbox.record import OutboxRow
from tinymq.outbox.rules import Decision, RowFate, TransactionMark, fate_of, is_older
from tinymq.outbox.tables import relay_table, rows_table

with required("tinymq.outbox"):
    from sqlalchemy import Connection, Engine, MetaData, and_, delete, func, insert, inspect, select, update
    from sqlalchemy.exc import IntegrityError

RELAY_ROW = 1
UNMARKED: dict[str, None] = {"producer_id": None, "epoch": None, "number": None}
CREATE_HINT = "create them by your migrations, or: tinymq outbox create --database URL"


@dataclass(frozen=True, slots=True)
class ActiveRelay:
    """The relay that works on this database, as its row says."""

    transactional_id: str
    owner: tuple[int, int] | None  # producer id and epoch of the relay that took over last
    beat: int
    released: bool


@dataclass(frozen=True, slots=True)
class Backlog:
    """The rows that wait, those of the transaction under way among them."""

    rows: int = 0
    oldest_us: int | None = None  # when the oldest of them was written; None: there is none, or no writer said


class RelayStore:
    """The two tables of an outbox, for one relay."""

    def __init__(self, engine: Engine) -> None:
        metadata = MetaData()
        self._engine = engine
        self._rows = rows_table(metadata)
        self._relay = relay_table(metadata)
        self._metadata = metadata
        self._owner: tuple[int, int] | None = None

    def create(self) -> None:
        """Create the tables that are missing."""
        self._metadata.create_all(self._engine)

    def check(self) -> None:
        """Raises NotFound if a table is missing."""
        found = inspect(self._engine)
        missing = [name for name in self._metadata.tables if not found.has_table(name)]
        if missing:
            raise NotFound(f"the database has no table {' and no table '.join(missing)}", hint=CREATE_HINT)

    def standing(self) -> ActiveRelay:
        """The relay's row. The first call writes it, with a transactional id that no other database has."""
        with self._engine.begin() as connection:
            found = connection.execute(select(self._relay).where(self._relay.c.id == RELAY_ROW)).one_or_none()
        if found is None:
            row = {"id": RELAY_ROW, "transactional_id": f"outbox-{uuid4().hex}", "beat": 0, "released": True}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(self._relay).values(row))
            except IntegrityError:
                pass  # another relay was faster
            return self.standing()
        owner = None if found.epoch is None else (found.producer_id, found.epoch)
        return ActiveRelay(found.transactional_id, owner, found.beat, found.released)

    def take(self, seen: ActiveRelay, owner: tuple[int, int], newest: Decision | None) -> tuple[int, int]:
        """Become the relay, unless another one has become it since `seen`, and judge the rows that are marked.

        Returns how many of them were sent, and how many are sent again. Raises Fenced, OutboxUnresolved.
        """
        with self._engine.begin() as connection:
            self._become(connection, seen, owner)
            if is_older(self._newest_mark(connection), newest):
                raise OutboxUnresolved("the log has rows that this database has not: it is older than the log")
            counts = {RowFate.SENT: 0, RowFate.UNSENT: 0}
            for mark in self._marks(connection):
                fate = fate_of(mark, newest)
                if fate is RowFate.UNKNOWN:
                    raise OutboxUnresolved(f"the brokers do not know the outcome of transaction {mark.number}")
                counts[fate] += self._settle(connection, mark, fate)
        self._owner = owner
        return counts[RowFate.SENT], counts[RowFate.UNSENT]

    def resolve(self, seen: ActiveRelay, owner: tuple[int, int], newest: Decision | None, *, sent: bool) -> int:
        """Take over, and treat every marked row as sent, or as unsent. Returns how many there were. Raises Fenced."""
        with self._engine.begin() as connection:
            self._become(connection, seen, owner)
            fate = RowFate.SENT if sent else RowFate.UNSENT
            count = sum(self._settle(connection, mark, fate) for mark in self._marks(connection))
            marked: dict[str, int | None] = dict.fromkeys(("marked_producer_id", "marked_epoch", "marked_number"))
            if newest is not None:
                marked = {
                    "marked_producer_id": newest.producer_id,
                    "marked_epoch": owner[1],
                    "marked_number": newest.number,
                }
            connection.execute(update(self._relay).values(**marked, released=True))
        return count

    def waiting(self) -> bool:
        """Whether there are rows to send."""
        with self._engine.begin() as connection:
            return connection.execute(select(self._rows.c.id).limit(1)).first() is not None

    def backlog(self) -> Backlog:
        """How many rows wait, and since when. Reads all of them."""
        columns = select(func.count(), func.min(self._rows.c.written_us)).select_from(self._rows)
        with self._engine.begin() as connection:
            return Backlog(*connection.execute(columns).one())

    def counts(self) -> tuple[int, int]:
        """How many rows there are, and how many of them are marked."""
        with self._engine.begin() as connection:
            all_rows, marked = connection.execute(select(func.count(), func.count(self._rows.c.number))).one()
        return all_rows, marked

    def beat(self) -> None:
        """Show other relays that this one works. Raises Fenced."""
        with self._changing():
            pass

    def mark(self, mark: TransactionMark, rows_max: int, bytes_max: int) -> list[OutboxRow]:
        """Mark the rows that the transaction sends: those of the lowest ids. Returns them. Raises Fenced."""
        table = self._rows
        key, value, headers = (
            func.coalesce(func.length(column), 0) for column in (table.c.key, table.c.value, table.c.headers)
        )
        size = key + value + headers
        first = select(table.c.id, size).where(table.c.number.is_(None)).order_by(table.c.id).limit(rows_max)
        columns = [table.c[name] for name in OutboxRow._fields]
        with self._changing(
            marked_producer_id=mark.producer_id, marked_epoch=mark.epoch, marked_number=mark.number
        ) as connection:
            ids = within(bytes_max, [(row_id, size) for row_id, size in connection.execute(first)])
            connection.execute(update(table).where(table.c.id.in_(ids)).values(mark._asdict()))
            chosen = select(*columns).where(table.c.id.in_(ids)).order_by(table.c.id)
            return [OutboxRow(*row) for row in connection.execute(chosen)]

    def remove(self, mark: TransactionMark, rows: Sequence[OutboxRow]) -> None:
        """Remove the rows of a committed transaction. Raises Fenced."""
        ids = [row.id for row in rows]
        with self._changing() as connection:
            connection.execute(delete(self._rows).where(self._rows.c.id.in_(ids), self._has(mark)))

    def release(self) -> None:
        """Let another relay take over without waiting. Raises Fenced."""
        with self._changing(released=True):
            pass

    # ---- one transaction --------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self, **values: Any) -> Iterator[Connection]:
        """A database transaction of the relay that works. Raises Fenced if that is another one by now."""
        assert self._owner is not None, "only a relay that has taken over changes rows"
        producer_id, epoch = self._owner
        table = self._relay
        mine = and_(table.c.id == RELAY_ROW, table.c.producer_id == producer_id, table.c.epoch == epoch)
        with self._engine.begin() as connection:
            changed = connection.execute(update(table).where(mine).values(beat=table.c.beat + 1, **values))
            if not changed.rowcount:
                raise Fenced("another relay works on this database")
            yield connection

    def _become(self, connection: Connection, seen: ActiveRelay, owner: tuple[int, int]) -> None:
        table = self._relay
        unchanged = and_(table.c.id == RELAY_ROW, table.c.beat == seen.beat)
        producer_id, epoch = owner
        values = {"producer_id": producer_id, "epoch": epoch, "beat": seen.beat + 1, "released": False}
        if not connection.execute(update(table).where(unchanged).values(values)).rowcount:
            raise Fenced("another relay has taken over")

    def _newest_mark(self, connection: Connection) -> TransactionMark | None:
        table = self._relay
        columns = select(table.c.marked_producer_id, table.c.marked_epoch, table.c.marked_number)
        found = connection.execute(columns.where(table.c.id == RELAY_ROW)).one()
        return None if found[2] is None else TransactionMark(*found)

    def _marks(self, connection: Connection) -> list[TransactionMark]:
        table = self._rows
        columns = select(table.c.producer_id, table.c.epoch, table.c.number)
        found = connection.execute(columns.where(table.c.number.is_not(None)).distinct())
        return [TransactionMark(*row) for row in found]

    def _settle(self, connection: Connection, mark: TransactionMark, fate: RowFate) -> int:
        change = delete(self._rows) if fate is RowFate.SENT else update(self._rows).values(UNMARKED)
        return int(connection.execute(change.where(self._has(mark))).rowcount)

    def _has(self, mark: TransactionMark) -> Any:
        table = self._rows
        return and_(table.c.producer_id == mark.producer_id, table.c.epoch == mark.epoch, table.c.number == mark.number)


def within(bytes_max: int, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """The first ids whose sizes together stay within `bytes_max`, and the first one in any case. Pure."""
    ids: list[int] = []
    for row_id, size in sizes:
        bytes_max -= size
        if ids and bytes_max < 0:
            break
        ids.append(row_id)
    return ids
