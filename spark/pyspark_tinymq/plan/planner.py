"""Plans the tasks of a batch or a micro-batch: the ranges, their holds, and the replicas that can serve them.

The planner finds records that were removed between two offsets before a task starts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from pyspark_tinymq.options.offsets import Offsets, Partition, Place
from pyspark_tinymq.options.settings import Source, Times
from pyspark_tinymq.plan import plan
from pyspark_tinymq.plan.hold_ledger import Holding, Ledger, group_holdings
from pyspark_tinymq.plan.lookup import Lookup, Topics
from pyspark_tinymq.plan.plan import GONE, LEFT, Bounds, Loss, Range
from pyspark_tinymq.plan.task import RangePartition
from tinymq.base.errors import OffsetOutOfRange

LOG = logging.getLogger("pyspark_tinymq")
HOLD_TRIES = 5  # the head may be trimmed between the look at the bounds and the hold


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one query. `hold_id` has 16 bytes."""

    lookup: Lookup
    source: Source
    scan_id: str
    hold_id: bytes
    ledger: Ledger
    hint: str = plan.STREAM_HINT  # what to do when records are lost

    def tasks(
        self,
        topics: Topics,
        starts: Offsets,
        ends: Offsets,
        *,
        lenient: Collection[Partition] = (),
        bounds: Mapping[Partition, Bounds] | None = None,
    ) -> list[RangePartition]:
        """Return the tasks that read between two offsets.

        The head of a partition in `lenient`, or of one without a start, may be gone. `bounds` are those of a moment
        ago, or None. Raises OffsetOutOfRange or UnknownPartition for lost records, unless failOnDataLoss=false.
        """
        planned = self._held(topics, starts, ends, lenient, bounds)
        held = {each.at: each.start for each in planned if self.ledger.holds(each.at, each.start)}
        holdings = group_holdings(self.hold_id, self.source.hold_s, held, binding=self.source.binding)
        other = next(iter(holdings.values()), Holding(self.hold_id, self.source.hold_s, {}))
        pieces = plan.split(planned, self.source.tasks_min, self.source.records_max)
        return [self._task(topics, piece, holdings.get(piece.at, other)) for piece in pieces]

    def report(self, losses: Sequence[Loss]) -> None:
        """Raise an error for the losses, or log them if failOnDataLoss=false."""
        if not losses:
            return
        asked = self.source.asks_for
        losses = [replace(each, what=LEFT) if each.what == GONE and not asked(each.at) else each for each in losses]
        error = plan.loss_error(losses, self.hint)
        if self.source.fail_on_loss:
            raise error
        LOG.warning("%s (failOnDataLoss=false: going on)", error.message)

    def keep(self, starts: Offsets) -> None:
        """Hold the records from these offsets on, although there is nothing to read yet."""
        try:
            self._hold(starts)
        except OffsetOutOfRange as error:  # the next plan looks at the bounds again, and reports a loss
            self.ledger.note(starts, (), monotonic())
            LOG.info("not held: %s", error.message)

    def release(self) -> None:
        """Release all holds of the query."""
        self.lookup.release(self.ledger.clear(), self.hold_id)

    def _hold(self, starts: Offsets) -> dict[Partition, int]:
        """Take or renew the holds that are due, as Lookup.hold does."""
        now_s = monotonic()
        due = self.ledger.due(starts, now_s) if self.source.hold_s else {}
        begins = self.lookup.hold(due, self.hold_id)
        self.ledger.note(due, begins, now_s)
        return begins

    def _held(
        self,
        topics: Topics,
        starts: Offsets,
        ends: Offsets,
        lenient: Collection[Partition],
        bounds: Mapping[Partition, Bounds] | None,
    ) -> list[Range]:
        to_read = [
            partition
            for partition, end in ends.items()
            if partition in topics.partitions and starts.get(partition) != end
        ]
        losses: list[Loss] = []
        planned: list[Range] = []
        for _ in range(HOLD_TRIES):
            here = bounds if bounds is not None else self._bounds(to_read, starts, ends)
            bounds = None
            planned, losses = plan.ranges(starts, ends, here, lenient)
            self.report(losses)
            try:
                begins = self._hold({each.at: each.start for each in planned})
            except OffsetOutOfRange as error:  # trimmed in between
                LOG.info("planning again: %s", error.message)
                continue
            # A hold may report that the head is gone. The next look at the bounds then shows it, too.
            if all(begins.get(each.at, 0) <= each.start for each in planned):
                break
        else:
            LOG.warning("records are removed while they are being planned, so they are not held")
        # Whether a planned range could be held or not, the query reads it or fails. It loses no record silently.
        return [replace(each, lenient=each.lenient and not self.source.hold_s) for each in planned]

    def _bounds(self, partitions: Collection[Partition], starts: Offsets, ends: Offsets) -> dict[Partition, Bounds]:
        """Return where the partitions begin and end.

        If no replica of a partition answers, the plan assumes that the offsets seen there earlier still exist. The task
        finds out whether they do. Spark retries a task that fails, but not a plan.
        """
        here = self.lookup.bounds(partitions, partial=True)
        silent = [partition for partition in partitions if partition not in here]
        here |= {partition: Bounds(starts[partition], ends[partition]) for partition in silent if partition in starts}
        new = [partition for partition in silent if partition not in starts]
        return here | self.lookup.bounds(new) if new else here

    def _task(self, topics: Topics, piece: Range, holding: Holding) -> RangePartition:
        partition, led = piece.at, topics.partitions[piece.at]
        return RangePartition(
            topic=partition.topic,
            topic_id=bytes.fromhex(topics.ids[partition.topic]),
            partition=partition.partition,
            start=piece.start,
            end=piece.end,
            lenient=piece.lenient,
            leader=led.leader,
            replicas=led.replicas,
            scan_id=self.scan_id,
            holding=holding,
        )


def clipped(
    place: Place | Times, offsets: Offsets, ends: Offsets, option: str
) -> tuple[dict[Partition, int], list[Loss]]:
    """Return `offsets`, lowered to the ends where a user's own number is beyond the end, and a loss for each of those.

    The offset of a time was found in the log. If it is beyond `ends`, records have arrived since the ends were read.
    """
    if not isinstance(place, Mapping):
        return dict(offsets), []
    beyond = [
        Loss(partition, f"ends at {ends[partition]}, and {option} is {offset}")
        for partition, offset in offsets.items()
        if offset > ends[partition]
    ]
    return {partition: min(offset, ends[partition]) for partition, offset in offsets.items()}, beyond


def log_scan_id(source: Source, scan_id: str, what: str) -> None:
    """Log, once for each query, the command that shows its reads."""
    LOG.info("%s of %s: tinymq scan describe %s", what, ",".join(source.servers), scan_id)
