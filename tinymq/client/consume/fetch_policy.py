"""How a partition is read: which replicas are asked in which order, how long a fetch waits, and which errors end it.

A PartitionFetcher asks its policy. Readers use FollowPolicy; scans have a policy of their own (scan.py).
"""

from __future__ import annotations

from typing import Protocol

from tinymq.base.errors import (
    BrokerUnreachable,
    CorruptData,
    OutcomeUnknown,
    StorageError,
    TinymqError,
)
from tinymq.client.cluster import routing
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Cost, Partition
from tinymq.client.common.config import ReaderConfig
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb

IDLE_TIMES_MAX = 4  # at a partition without new records a fetch waits at most this many times fetch_wait_ms


class FetchPolicy(Protocol):
    """The decisions of one PartitionFetcher. Nothing here blocks."""

    def order(self, partition: Partition, cost: Cost, turn: int) -> list[int]:
        """Return the brokers to ask, best first. `turn` rotates among equals."""
        ...

    def reconsiders(self, partition: Partition, broker: int) -> bool:
        """Is the choice of `broker` looked at again before each fetch, not only now and then?"""
        ...

    def wait_ms(self, empty: int) -> float:
        """Return how long the broker may hold the next fetch open. `empty`: answers in a row without a record."""
        ...

    def complete(self, request: pb.FetchRequest) -> None:
        """Set the fields of a request that only this kind of reading has."""
        ...

    def answered(self, address: str, fetched: Fetched, took_s: float) -> None:
        """Note an answer, which took `took_s`."""
        ...

    def counts_as_served(self, broker: int, offset: int, fetched: Fetched) -> bool:
        """Is an answer without records a valid one? Raises OffsetNotAvailable if the fetcher should leave the replica
        for it."""
        ...

    def asks_again(self, broker: int, offset: int, error: TinymqError) -> bool:
        """Is the same replica asked again after `error`, because it is given more time?"""
        ...

    def is_final(self, error: TinymqError, offset: int) -> bool:
        """Would every replica give this answer, at any time?"""
        ...

    def failure(self, text: str, refusals: list[TinymqError]) -> TinymqError:
        """Return the error of a partition that no replica serves. `refusals`: the last answer of each."""
        ...


class FollowPolicy:
    """The policy of a reader, which follows a partition as records are appended to it."""

    def __init__(self, cluster: Cluster, config: ReaderConfig) -> None:
        self._cluster = cluster
        self._config = config

    def order(self, partition: Partition, cost: Cost, turn: int) -> list[int]:
        view, rack = self._cluster.view, self._cluster.config.rack
        if self._config.replica == "leader":
            return [partition.leader] if partition.leader in view.brokers else []
        return routing.read_order(view, partition, self._config.replica, rack=rack, cost=cost, turn=turn)

    def reconsiders(self, partition: Partition, broker: int) -> bool:
        return self._config.replica == "leader"

    def wait_ms(self, empty: int) -> float:
        wait_ms, config = self._config.fetch_wait_ms, self._config
        if config.replica != "leader":
            return wait_ms  # a follower may be stale: it is compared with others after a while (stale_ms_max)
        # Many readers that wait at idle partitions would keep their client and the brokers busy by asking again.
        most_ms = min(IDLE_TIMES_MAX * wait_ms, self._cluster.attempt_s * 1000, config.unreachable_ms_max / 4)
        return max(wait_ms, min(wait_ms * 2.0 ** min(empty, 10), most_ms))

    def complete(self, request: pb.FetchRequest) -> None:
        pass

    def answered(self, address: str, fetched: Fetched, took_s: float) -> None:
        pass

    def counts_as_served(self, broker: int, offset: int, fetched: Fetched) -> bool:
        return True  # there is nothing to read, as far as this replica knows

    def asks_again(self, broker: int, offset: int, error: TinymqError) -> bool:
        return False

    def is_final(self, error: TinymqError, offset: int) -> bool:
        return not error.retriable and not isinstance(error, StorageError | OutcomeUnknown)

    def failure(self, text: str, refusals: list[TinymqError]) -> TinymqError:
        # Damage is named wherever it is found, because somebody has to repair it.
        damaged = any(isinstance(error, CorruptData) for error in refusals)
        return CorruptData(text) if damaged else BrokerUnreachable(text)
