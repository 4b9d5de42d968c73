"""The seams of PySyncObj 0.3.17 that tinymq relies on, checked at import and patched in one place.

The version is pinned exactly: `pysyncobj_state` overrides private names, and another version may not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport as StockTransport
from pysyncobj.version import VERSION

from tinymq.base.clock import Clock
from tinymq.raft.state.journal import GroupJournal

SUPPORTED_VERSION = "0.3.17"

FOLLOWER = stock._RAFT_STATE.FOLLOWER
CANDIDATE = stock._RAFT_STATE.CANDIDATE
LEADER = stock._RAFT_STATE.LEADER


def check_version(names: Iterable[str]) -> None:
    """Raise ImportError if PySyncObj is another version, or lacks one of the private names that tinymq relies on."""
    missing = [name for name in names if not hasattr(SyncObj, name)]
    if VERSION != SUPPORTED_VERSION or missing:
        raise ImportError(f"tinymq needs pysyncobj {SUPPORTED_VERSION}; found {VERSION}, missing {missing}")


_stock_create_journal: Callable[[Any], Any] = stock.createJournal
_stock_monotonic: Callable[[], float] = stock.monotonicTime
_running: list[Clock] = []


def _create_journal(journal: Any) -> Any:
    """Return our journal, given to PySyncObj as `conf.journalFile`. Its other users get the stock journal."""
    return journal if isinstance(journal, GroupJournal) else _stock_create_journal(journal)


def _monotonic() -> float:
    return _running[-1].monotonic() if _running else _stock_monotonic()


stock.createJournal = _create_journal
stock.monotonicTime = _monotonic


class RunningClock:
    """A block in which stock code reads this clock. In a simulation, each broker's clock drifts by itself."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        _running.append(self._clock)

    def __exit__(self, *_: object) -> None:
        _running.pop()


class PeerNode(Node):  # type: ignore[misc]
    """A broker as a node of PySyncObj, identified by its id."""

    def __str__(self) -> str:
        return f"broker {self.id}"


@lru_cache(1024)
def peer(broker_id: int) -> PeerNode:
    """Return the node that stands for a broker, always the same one."""
    return PeerNode(broker_id)


class NoTransport(StockTransport):  # type: ignore[misc]
    """A transport that refuses: messages leave through `ReplicaState.post` as values (hazard 16)."""

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
    """Return a configuration without ticking thread, dump file, membership change and file descriptors.

    It closes hazards 5, 6, 8, 20 and 21.
    """
    return SyncObjConf(
        autoTick=False,
        useFork=False,
        dynamicMembershipChange=False,
        appendEntriesUseBatch=True,
        pollerType="select",
        journalFile=journal,
        fullDumpFile=None,
    )
