"""A worker as transactions use it: requests that stage acks of its jobs, and their effect on the jobs. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tinymq.client.consume.cursors import ChannelId, GroupRef
from tinymq.client.work.grants import write_grants
from tinymq.client.work.job import Job
from tinymq.proto import tinymq_pb2 as pb

if TYPE_CHECKING:
    from tinymq.client.cluster.cluster import Cluster
    from tinymq.client.work.partition_work import PartitionWork

JOBS_MAX = 10_000  # of one request
QUEUE_GROUP = 2  # the kind of a cursor


class TransactionalWorker(Protocol):
    """A worker, as the transactions that ack its jobs use it."""

    def check_transactional(self, cluster: Cluster) -> None:
        """Raise InvalidRequest for a worker of another client, and what has ended the worker. From any thread."""
        ...

    def staged(self, work: PartitionWork) -> None:
        """The acks of some jobs are staged, and others may come. On the client's loop."""
        ...


class StagedTogether(NamedTuple):
    """Jobs of one worker and one partition whose acks are staged by one request."""

    work: PartitionWork
    jobs: Sequence[Job]

    @property
    def cursor(self) -> ChannelId:
        """The cursor of the group in that partition."""
        work = self.work
        return ChannelId(work.topic, work.partition, work._group, GroupRef(QUEUE_GROUP, work._group_id))

    def request(self, transaction: pb.BatchTransaction) -> pb.ChannelStageAcks:
        """The request, with the place of the acks in their transaction."""
        (grants,) = write_grants([job.grant for job in self.jobs])
        return pb.ChannelStageAcks(session=self.work._session, grants=grants, transaction=transaction)


def divided(jobs: Iterable[Job]) -> Iterator[StagedTogether]:
    """The jobs in groups that fit one request: of one worker, partition, history and generation, at most JOBS_MAX."""
    parts: dict[tuple[int, int, int], list[Job]] = {}
    for job in jobs:
        parts.setdefault((id(job._partition_work), job.grant.history, job.grant.generation), []).append(job)
    for part in parts.values():
        for first in range(0, len(part), JOBS_MAX):
            yield StagedTogether(part[0]._partition_work, part[first : first + JOBS_MAX])


def note_staged(work: PartitionWork, jobs: Iterable[Job]) -> None:
    """Note that the acks of these jobs are staged: the transaction holds the jobs, and the leader may grant others."""
    for job in jobs:
        job._loss = None  # what the leader said while the request was under way
        if work.holds(job):
            del work.held[job.grant.offset]
            work._free(job)
            work._key_is_free(job, settled=True)
