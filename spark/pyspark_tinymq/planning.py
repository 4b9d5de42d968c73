"""From where to where each partition is read, as tasks: held, split, and with the replicas that can serve.

What was removed, or is gone, between two offsets is found here, before a task is started for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tinymq import plan
from pyspark_tinymq.lookup import Lookup, Topics
from pyspark_tinymq.offsets import Offsets, Partition
from pyspark_tinymq.plan import Bounds, Loss, Range
from pyspark_tinymq.settings import Source
from pyspark_tinymq.task import RangePartition
from tinymq.errors import OffsetOutOfRange

LOG = logging.getLogger("pyspark_tinymq")
HOLD_TRIES = 5  # the head may be trimmed between asking where it is and holding it


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one query. `hold_id` has 16 bytes."""

    lookup: Lookup
    source: Source
    scan_id: str
    hold_id: bytes

    def tasks(
        self,
        topics: Topics,
        starts: Offsets,
        ends: Offsets,
        *,
        lenient: Collection[Partition] = (),
        bounds: Mapping[Partition, Bounds] | None = None,
    ) -> list[RangePartition]:
        """What is between two offsets, as tasks. Raises OffsetOutOfRange, UnknownPartition for what is lost, unless
        failOnDataLoss=false. The head of a partition in `lenient`, or without a start, may be gone. `bounds`: as they
        were a moment ago, if that is known."""
        planned = self._held(topics, starts, ends, lenient, bounds)
        heads = {each.at: each.start for each in planned}
        pieces = plan.split(planned, self.source.tasks_min, self.source.records_max)
        return [self._task(topics, piece, heads[piece.at]) for piece in pieces]

    def report(self, losses: Sequence[Loss]) -> None:
        """Raise, or say in the log, what is lost."""
        if not losses:
            return
        error = plan.loss_error(losses)
        if self.source.fail_on_loss:
            raise error
        LOG.warning("%s (failOnDataLoss=false: going on)", error.message)

    def keep(self, starts: Offsets) -> None:
        """Keep what lies from here on, for who has nothing to read yet."""
        try:
            self.lookup.hold(starts, self.hold_id)
        except OffsetOutOfRange as error:  # the next plan finds out what that means
            LOG.info("not held: %s", error.message)

    def _held(
        self,
        topics: Topics,
        starts: Offsets,
        ends: Offsets,
        lenient: Collection[Partition],
        bounds: Mapping[Partition, Bounds] | None,
    ) -> list[Range]:
        wanted = [at for at, end in ends.items() if at in topics.partitions and starts.get(at) != end]
        losses: list[Loss] = []
        planned: list[Range] = []
        for _ in range(HOLD_TRIES):
            here = bounds if bounds is not None else self.lookup.bounds(wanted)
            bounds = None
            planned, losses = plan.ranges(starts, ends, here, lenient)
            self.report(losses)
            try:
                begins = self.lookup.hold({each.at: each.start for each in planned}, self.hold_id)
            except OffsetOutOfRange as error:  # trimmed in between
                LOG.info("planning again: %s", error.message)
                continue
            # Where holding told that the head is gone, the next look at the bounds says so, too.
            if all(begins.get(each.at, 0) <= each.start for each in planned):
                return planned
        LOG.warning("what is read is trimmed as it is planned: not held")
        return planned

    def _task(self, topics: Topics, piece: Range, head: int) -> RangePartition:
        at, led = piece.at, topics.partitions[piece.at]
        return RangePartition(
            topic=at.topic,
            partition=at.partition,
            start=piece.start,
            end=piece.end,
            lenient=piece.lenient,
            leader=led.leader,
            epoch=led.epoch,
            replicas=led.replicas,
            scan_id=self.scan_id,
            hold_id=self.hold_id,
            held_from=head,
        )


def clipped(offsets: Offsets, ends: Offsets, option: str) -> tuple[dict[Partition, int], list[Loss]]:
    """Places that a user gave, none beyond the end; and those that were."""
    beyond = [
        Loss(at, f"ends at {ends[at]}, and {option} is {offset}") for at, offset in offsets.items() if offset > ends[at]
    ]
    return {at: min(offset, ends[at]) for at, offset in offsets.items()}, beyond


def told(source: Source, scan_id: str, what: str) -> None:
    """Say once for each query how its reads are found again."""
    LOG.info("%s of %s: tinymq scan describe %s", what, ",".join(source.servers), scan_id)
