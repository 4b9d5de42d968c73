"""Holds on records that a query reads. The driver keeps a ledger of the holds, and each task renews those of its plan.

A hold is light by default: it only delays retention. With the option holdMs it is binding: it also refuses trims, and
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

HOLD_TIMEOUT_S = 5.0  # a query reads a partition without a leader too, so it does not wait longer for the hold
RENEWALS_PER_LEASE = 3
PLANS_MAX = 1024  # the entries of _renewed
TOGETHER_MAX = 1024  # partitions in one Holding: a task of a larger plan renews only a part of the plan

_renewed: OrderedDict[object, float] = OrderedDict()  # Holding.key -> when this process renewed it, the latest last
_asking = threading.Lock()


@dataclass(slots=True)
class Ledger:
    """The holds that a driver has, and its attempts that failed. Pure.

    Times are in seconds, on any clock that never goes back.
    """

    lease_s: float
    _held: dict[Partition, tuple[int, float]] = field(default_factory=dict)  # (first offset held, when it was renewed)
    _refused: dict[Partition, float] = field(default_factory=dict)  # when the last attempt failed

    def due(self, starts: Offsets, now_s: float) -> dict[Partition, int]:
        """Return those of `starts` whose hold must be taken, moved or renewed now. A refused hold is retried later."""
        pause_s = self.lease_s / RENEWALS_PER_LEASE

        def is_due(partition: Partition, offset: int) -> bool:
            if (tried_s := self._refused.get(partition)) is not None:
                return now_s - tried_s >= pause_s
            held, since_s = self._held.get(partition, (-1, now_s))
            return held != offset or now_s - since_s >= pause_s

        return {partition: offset for partition, offset in starts.items() if is_due(partition, offset)}

    def note(self, asked: Offsets, held: Collection[Partition], now_s: float) -> None:
        """Record an attempt to hold `asked`, of which the partitions in `held` succeeded."""
        for partition, offset in asked.items():
            self._refused.pop(partition, None)
            if partition in held:
                self._held[partition] = (offset, now_s)
            else:
                self._refused[partition] = now_s

    def holds(self, partition: Partition, offset: int) -> bool:
        """Tell whether the last attempt held the partition from `offset` or a lower offset on."""
        return partition not in self._refused and 0 <= self._held.get(partition, (-1, 0.0))[0] <= offset

    def clear(self) -> dict[Partition, int]:
        """Forget all holds, and return them."""
        held = {partition: offset for partition, (offset, _) in self._held.items()}
        self._held.clear()
        self._refused.clear()
        return held


@dataclass(frozen=True, slots=True)
class Holding:
    """Holds of one plan, which its tasks renew. Picklable."""

    hold_id: bytes  # 16 bytes
    lease_s: float
    offsets: Mapping[str, Mapping[int, int]]  # topic -> partition -> the first offset that is held
    binding: bool = False

    @property
    def key(self) -> tuple[bytes, object]:
        """The identity of this holding within a process."""
        first = next(iter(self.offsets.items()), None)
        return self.hold_id, None if first is None else (first[0], next(iter(first[1])))


def group_holdings(hold_id: bytes, lease_s: float, held: Offsets, *, binding: bool = False) -> dict[Partition, Holding]:
    """Return for each held partition the holding that its tasks renew.

    A holding has all partitions of a small plan, and TOGETHER_MAX neighbours of a large one. Every task carries its
    holding, so without this limit the size of a plan would grow with the square of its partitions.
    """
    ordered = sorted(held.items())
    found: dict[Partition, Holding] = {}
    for first in range(0, len(ordered), TOGETHER_MAX):
        group = ordered[first : first + TOGETHER_MAX]
        found |= dict.fromkeys(
            (partition for partition, _ in group), Holding(hold_id, lease_s, by_topic(group), binding)
        )
    return found


def by_topic(offsets: Iterable[tuple[Partition, int]]) -> dict[str, dict[int, int]]:
    """Return the offsets in the form of requests: topic -> partition -> offset."""
    found: dict[str, dict[int, int]] = {}
    for partition, offset in sorted(offsets):
        found.setdefault(partition.topic, {})[partition.partition] = offset
    return found


class Renewal:
    """Renews the holds of a plan while its `with` block runs. It renews all of them, because other tasks of the plan
    may not have begun. A thread of its own does it, because the consumer of the rows may pause for long.

    A process renews a holding once per third of the lease, however many tasks it runs. Brokers write nothing for a hold
    that another process has just renewed. A failed renewal does not stop the task, because its records may still exist.
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
                LOG.warning("%s: its hold was not renewed: %s", topic, error)


def _turn(key: object, pause_s: float) -> float:
    """Return the seconds until this process must renew the holding. At 0 or less the caller must renew it now."""
    now_s = time.monotonic()
    with _asking:
        wait_s = _renewed.get(key, now_s - pause_s) + pause_s - now_s
        if wait_s <= 0:
            _renewed[key] = now_s
            _renewed.move_to_end(key)
            if len(_renewed) > PLANS_MAX:
                _renewed.popitem(last=False)
        return wait_s
