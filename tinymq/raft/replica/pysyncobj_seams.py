"""The seams of PySyncObj 0.3.17 that tinymq stands on, checked at import and patched in one place.

Pinned exactly: the subclass in replica.py overrides private names, and another version may not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport as StockTransport
from pysyncobj.version import VERSION

from tinymq.base.clock import Clock
from tinymq.raft.replica.journal import GroupJournal

SUPPORTED_VERSION = "0.3.17"
OVERRIDDEN = (
    "_onTick", "_applyCommand", "_checkCommandsToApply", "_SyncObj__onMessageReceived", "_SyncObj__sendNextNodeIdx",
    "_SyncObj__sendAppendEntries", "_SyncObj__onBecomeLeader", "_SyncObj__applyLogEntries", "_SyncObj__getEntries",
    "_SyncObj__doApplyCommand", "_SyncObj__deleteEntriesFrom", "_SyncObj__deleteEntriesTo", "_SyncObj__loadDumpFile",
    "_SyncObj__tryLogCompaction", "_SyncObj__connectedToAnyone", "_SyncObj__generateRaftTimeout",
    "_SyncObj__onSetCodeVersion", "_SyncObj__doChangeCluster", "_SyncObj__changeCluster",
)  # fmt: skip
RELIED_ON = ("_SyncObj__setState", "_SyncObj__setCurrentTerm", "_SyncObj__getCurrentLogIndex",
             "_SyncObj__getCurrentLogTerm", "_isLeader", "_getLeader", "_getTerm")  # fmt: skip

FOLLOWER = stock._RAFT_STATE.FOLLOWER
CANDIDATE = stock._RAFT_STATE.CANDIDATE
LEADER = stock._RAFT_STATE.LEADER

_missing = [name for name in OVERRIDDEN + RELIED_ON if not hasattr(SyncObj, name)]
if VERSION != SUPPORTED_VERSION or _missing:
    raise ImportError(f"tinymq needs pysyncobj {SUPPORTED_VERSION}; found {VERSION}, missing {_missing}")

_stock_create_journal: Callable[[Any], Any] = stock.createJournal
_stock_monotonic: Callable[[], float] = stock.monotonicTime
_running: list[Clock] = []


def _create_journal(journal: Any) -> Any:
    """Stock passes conf.journalFile; ours is the journal itself. Other users of PySyncObj get what they had."""
    return journal if isinstance(journal, GroupJournal) else _stock_create_journal(journal)


def _monotonic() -> float:
    return _running[-1].monotonic() if _running else _stock_monotonic()


stock.createJournal = _create_journal
stock.monotonicTime = _monotonic


class RunningClock:
    """Stock code called inside reads this clock: each broker of a simulation drifts by itself."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        _running.append(self._clock)

    def __exit__(self, *_: object) -> None:
        _running.pop()


class PeerNode(Node):  # type: ignore[misc]
    """A broker, by its number."""

    def __str__(self) -> str:
        return f"broker {self.id}"


@lru_cache(1024)
def peer(broker_id: int) -> PeerNode:
    """The node that stands for a broker. The same one again: one is wanted for every message."""
    return PeerNode(broker_id)


class NoTransport(StockTransport):  # type: ignore[misc]
    """Stock code sends nothing: messages leave through `core.RaftReplica` as values (hazard 16)."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: object) -> bool:
        raise AssertionError("stock PySyncObj code tried to send")

    def destroy(self) -> None:
        pass


def configuration(journal: GroupJournal) -> SyncObjConf:
    """No ticking thread, no dump file, no membership changes (hazards 5, 6, 8, 20, 21), no file descriptors."""
    return SyncObjConf(
        autoTick=False,
        useFork=False,
        dynamicMembershipChange=False,
        appendEntriesUseBatch=True,
        pollerType="select",
        journalFile=journal,
        fullDumpFile=None,
    )
