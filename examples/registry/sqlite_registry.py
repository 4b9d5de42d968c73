"""A RegistryService as a template: one SQLite file that the brokers of one machine share. As in every registry,
`RegistryState` decides each change, inside the transaction that stores the result; SQLite runs one transaction at a
time. Each broker polls the file for the changes of others. docs/registry.md walks through this file.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path

from tinymq import DeadlineExceeded, InvalidConfig, NotReady, OutcomeUnknown, TinymqError
from tinymq.base.clock import Clock, Timer
from tinymq.base.config import Timing
from tinymq.base.types import GroupId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.base_registry import BaseRegistry
from tinymq.registry.factory import RegistryContext
from tinymq.registry.state.effects import Reloaded
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord

LOOK_S = 0.05  # how late another broker's change is seen
BUSY_S = 1.0  # for others to end their writing; this broker's loop stands still meanwhile
TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, version INTEGER NOT NULL, dump BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leases (broker_id INTEGER PRIMARY KEY, session INTEGER NOT NULL, until_us INTEGER NOT NULL);
"""


def open_registry(url: str, context: RegistryContext) -> SqliteRegistry:
    """Open the registry of a URL sqlite:///path/of/the/file. A package names this function as its entry point, or a
    program passes it to `plug_in`."""
    file = url.removeprefix("sqlite://")
    if not file.startswith("/"):
        raise InvalidConfig("not the URL of an SQLite file", hint="write sqlite:///path/of/the/file")
    return SqliteRegistry(Path(file), context.clock, context.rng, context.timing)


class SqliteRegistry(BaseRegistry):
    """RegistryService in `file`. From `start` to `stop`."""

    def __init__(self, file: Path, clock: Clock, rng: random.Random, timing: Timing) -> None:
        super().__init__(RegistryState(), clock, rng, timing)
        self._db = sqlite3.connect(file, isolation_level=None, timeout=BUSY_S)
        self._timer: Timer | None = None

    async def start(self, on_disk: Collection[GroupId]) -> None:
        self._db.executescript(TABLES)
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._db.close()

    # ---- changes ------------------------------------------------------------------------------------------

    async def register_broker(self, broker: BrokerRecord) -> float:
        lease_s = self._timing.registration_lease_s
        lease = (broker.broker_id, broker.session, self._clock.wall_us() + int(lease_s * 1_000_000))
        renew = "INSERT OR REPLACE INTO leases VALUES (?, ?, ?)"
        self._transact(lambda: self._db.execute(renew, lease))
        if self.get_broker(broker.broker_id) != broker:
            await self._change(self._registration(broker))
        return lease_s

    async def refresh(self, timeout_s: float) -> int:
        try:
            self._catch_up()
        except sqlite3.Error as error:
            raise NotReady(f"the registry cannot be read: {error}") from error
        return self.version

    async def _submit(self, command: pb.Command, timeout_s: float) -> pb.Reply:
        """The only part that differs between such registries: how a command is applied, once."""
        return self._transact(lambda: self._store(command), command)

    def _store(self, command: pb.Command) -> None:
        after = self._state.fork()
        after.apply(command)
        self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (after.version, after.dump()))

    def _transact(self, work: Callable[[], object], command: pb.Command | None = None) -> pb.Reply:
        """Run `work` as one transaction on the newest state, and adopt the result of `command`."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise DeadlineExceeded(f"the registry cannot be written: {error}") from error
        try:
            self._catch_up()
            work()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._db.rollback()
            raise OutcomeUnknown(f"the registry was not written: {error}") from error
        if command is None:
            return pb.Reply(version=self.version)
        # the stored bytes: equal commands have equal results on every broker
        reply, effects = self._state.apply(command)
        self._advanced(effects)
        return reply

    # ---- following ----------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        newer = self._db.execute("SELECT dump FROM state WHERE version > ?", (self.version,)).fetchone()
        if newer is not None:
            self._state.load(newer[0])
            self._advanced([Reloaded()])

    def _look(self) -> None:
        self._timer = self._clock.call_later(LOOK_S, self._look)
        over = "SELECT broker_id, session FROM leases WHERE until_us < ?"
        try:
            self._catch_up()
            for broker_id, session in self._db.execute(over, (self._clock.wall_us(),)).fetchall():
                gone = pb.UnregisterBroker(broker_id=broker_id, session=session)
                self._end(self._stamp(pb.Command(unregister_broker=gone)))
        except (sqlite3.Error, TinymqError):
            return  # polled again soon

    def _end(self, gone: pb.Command) -> None:
        key = (gone.unregister_broker.broker_id, gone.unregister_broker.session)
        over = "DELETE FROM leases WHERE broker_id = ? AND session = ?"
        self._transact(lambda: (self._db.execute(over, key), self._store(gone)), gone)  # type: ignore[func-returns-value]
