"""What is held while it is read: a driver keeps a ledger of it, and tasks renew all that was planned together.

The hold is light by default: it only delays retention. With the option holdMs it is binding: it also refuses trims, and
producers of a full partition. Either kind ends with its lease, and moves forward with the query.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyspark_tinymq.options.offsets import Offsets, Partition
from tinymq.base.errors import TinymqError

if TYPE_CHECKING:
    from tinymq.client import Client

LOG = logging.getLogger("pyspark_tinymq")

HOLD_TIMEOUT_S = 5.0  # a partition that nobody leads is read all the same
RENEWALS_PER_LEASE = 3
PLANS_MAX = 1024  # that a process knows to have renewed
TOGETHER_MAX = 1024  # partitions: a task of a plan of more renews a part of it

_renewed: OrderedDict[object, float] = OrderedDict()  # a holding's key -> when, by this process; the latest at the end
_asking = threading.Lock()


@dataclass(slots=True)
class Ledger:
    """What a driver holds: from where on, and since when; and what it tried to in vain. Pure.

    Times are in seconds, of any clock that never goes back.
    """

    lease_s: float
    _held: dict[Partition, tuple[int, float]] = field(default_factory=dict)
    _refused: dict[Partition, float] = field(default_factory=dict)

    def due(self, wanted: Offsets, now_s: float) -> dict[Partition, int]:
        """What has to be held, or moved, or renewed, of what is wanted. What was refused is left for a while."""
        pause_s = self.lease_s / RENEWALS_PER_LEASE

        def is_due(at: Partition, offset: int) -> bool:
            if (tried_s := self._refused.get(at)) is not None:
                return now_s - tried_s >= pause_s
            held, since_s = self._held.get(at, (-1, now_s))
            return held != offset or now_s - since_s >= pause_s

        return {at: offset for at, offset in wanted.items() if is_due(at, offset)}

    def note(self, asked: Offsets, held: Collection[Partition], now_s: float) -> None:
        """What became of what was due."""
        for at, offset in asked.items():
            self._refused.pop(at, None)
            if at in held:
                self._held[at] = (offset, now_s)
            else:
                self._refused[at] = now_s

    def holds(self, at: Partition, offset: int) -> bool:
        """Was it held from that offset on, or from a lower one, when that was last tried?"""
        return at not in self._refused and 0 <= self._held.get(at, (-1, 0.0))[0] <= offset

    def clear(self) -> dict[Partition, int]:
        """Nothing is held any more; what was."""
        held = {at: offset for at, (offset, _) in self._held.items()}
        self._held.clear()
        self._refused.clear()
        return held


@dataclass(frozen=True, slots=True)
class Holding:
    """What was planned and held together, for its tasks to renew. Picklable."""

    hold_id: bytes  # 16
    lease_s: float
    offsets: Mapping[str, Mapping[int, int]]  # topic -> partition -> held from there on
    binding: bool = False

    @property
    def key(self) -> tuple[bytes, object]:
        """What tells it from others."""
        first = next(iter(self.offsets.items()), None)
        return self.hold_id, None if first is None else (first[0], next(iter(first[1])))


def together(hold_id: bytes, lease_s: float, held: Offsets, *, binding: bool = False) -> dict[Partition, Holding]:
    """For each partition that is held what its tasks renew: all of the plan, or, of a large one, those about it. Each
    task is sent all of it, so that a plan would grow with the square of its size."""
    ordered = sorted(held.items())
    found: dict[Partition, Holding] = {}
    for first in range(0, len(ordered), TOGETHER_MAX):
        group = ordered[first : first + TOGETHER_MAX]
        found |= dict.fromkeys((at for at, _ in group), Holding(hold_id, lease_s, by_topic(group), binding))
    return found


def by_topic(offsets: Iterable[tuple[Partition, int]]) -> dict[str, dict[int, int]]:
    """Offsets of partitions, as requests have them: topic -> partition -> offset."""
    found: dict[str, dict[int, int]] = {}
    for at, offset in sorted(offsets):
        found.setdefault(at.topic, {})[at.partition] = offset
    return found


class Renewal:
    """Renews a plan's holds for as long as its `with` block runs: all of them, for other tasks of the plan may not have
    begun. Beside the reading, since whoever takes what is read may take its time.

    A process does so once in a third of the lease, however many tasks it runs, and brokers write nothing where another
    process did. A hold that cannot be renewed is no reason to stop: what is read may well be there.
    """

    def __init__(self, client: Client, holding: Holding) -> None:
        self._client = client
        self._holding = holding
        self._done = threading.Event()

    def __enter__(self) -> Self:
        if self._holding.offsets:
            threading.Thread(target=self._run, name="tinymq-holds", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _run(self) -> None:
        pause_s = self._holding.lease_s / RENEWALS_PER_LEASE
        wait_s = 0.0
        while not self._done.wait(wait_s):
            wait_s = _turn(self._holding.key, pause_s)
            if wait_s <= 0:
                self._renew()
                wait_s = pause_s

    def _renew(self) -> None:
        holding = self._holding
        for topic, offsets in holding.offsets.items():
            try:
                self._client.admin.hold_many(
                    topic,
                    offsets,
                    hold_id=holding.hold_id,
                    lease=holding.lease_s,
                    partial=True,
                    light=not holding.binding,
                    timeout=HOLD_TIMEOUT_S,
                )
            except TinymqError as error:
                LOG.warning("%s: a hold on it was not renewed: %s", topic, error)


def _turn(key: object, pause_s: float) -> float:
    """How long until this process is to renew that holding, in seconds; 0: now, and whoever asked does it."""
    now_s = time.monotonic()
    with _asking:
        wait_s = _renewed.get(key, now_s - pause_s) + pause_s - now_s
        if wait_s <= 0:
            _renewed[key] = now_s
            _renewed.move_to_end(key)
            if len(_renewed) > PLANS_MAX:
                _renewed.popitem(last=False)
        return wait_s
