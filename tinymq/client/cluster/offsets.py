"""Ask all leaders at once for offsets: the start and the end of partitions, and the first record after a time."""

from __future__ import annotations

import asyncio

from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded, NotLeader, OutcomeUnknown, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Partition, Topic
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb

LEADER_TRIES = 3  # rounds in which only leaders are asked, before all replicas are, if the caller accepts them


async def list_offsets(
    cluster: Cluster,
    topic: Topic,
    asks: dict[int, int],
    *,
    timeout_s: float,
    leader_only: bool,
    partial: bool = False,
) -> dict[int, pb.OffsetAnswer]:
    """Return the answer for each partition of `asks` (partition -> OffsetQuery.timestamp_us).

    Leaders are asked first. Without `leader_only`, all replicas are asked when a leader is silent or unknown, and the
    answer of the replica with the highest end counts. Raises UnknownPartition, a definite error of a broker, or
    DeadlineExceeded. With `partial`, partitions without an answer in time are left out instead.
    """
    for partition in asks:
        if topic.partition(partition) is None:
            raise topic.unknown(partition)
    found: dict[int, pb.OffsetAnswer] = {}
    reasons: dict[str, str] = {}
    silent: set[str] = set()  # addresses that gave no answer
    async for attempt in cluster.attempts(timeout_s):
        missing = [p for p in asks if p not in found]
        strict = leader_only or (attempt.number <= LEADER_TRIES and not silent)
        groups = _by_leader(cluster, topic, missing) if strict else _by_replica(cluster, topic, missing, silent)
        calls = [
            _ask(cluster, topic, address, {p: asks[p] for p in group}, strict=strict, left_s=attempt.left_s)
            for address, group in groups.items()
        ]
        for address, answers in zip(groups, await asyncio.gather(*calls), strict=True):
            for partition, answer in answers.items():
                if isinstance(answer, TinymqError):
                    reasons[f"{topic.name}/{partition}"] = answer.message
                    if isinstance(answer, BrokerUnreachable | OutcomeUnknown):
                        silent.add(address)
                elif partition not in found or found[partition].high_watermark < answer.high_watermark:
                    found[partition] = answer
        if len(found) == len(asks):
            return found
    if partial:
        return found
    why = cluster.trouble(reasons) or "no leader is known"
    raise DeadlineExceeded(f"no offsets within {timeout_s:.3g} s: {why}")


def _by_leader(cluster: Cluster, topic: Topic, partitions: list[int]) -> dict[str, list[int]]:
    """Return which partitions to ask each leader for, by address."""
    groups: dict[str, list[int]] = {}
    for partition in partitions:
        if (address := cluster.view.address(_at(cluster, topic, partition).leader)) is not None:
            groups.setdefault(address, []).append(partition)
    return groups


def _by_replica(cluster: Cluster, topic: Topic, partitions: list[int], silent: set[str]) -> dict[str, list[int]]:
    """Return which partitions to ask each replica for, by address, without the silent ones unless all are silent."""
    groups: dict[str, list[int]] = {}
    for partition in partitions:
        known = [cluster.view.address(broker) for broker in _at(cluster, topic, partition).replicas]
        addresses = [address for address in known if address is not None]
        for address in [a for a in addresses if a not in silent] or addresses:
            groups.setdefault(address, []).append(partition)
    return groups


def _at(cluster: Cluster, topic: Topic, partition: int) -> Partition:
    placement = cluster.view.topics.get(topic.name, topic).partition(partition) or topic.partition(partition)
    assert placement is not None, "checked before the first attempt"
    return placement


async def _ask(
    cluster: Cluster,
    topic: Topic,
    address: str,
    asks: dict[int, int],
    *,
    strict: bool,
    left_s: float,
) -> dict[int, pb.OffsetAnswer | TinymqError]:
    request = pb.ListOffsetsRequest(
        topic_id=topic.topic_id,
        queries=[pb.OffsetQuery(partition=p, timestamp_us=timestamp_us) for p, timestamp_us in asks.items()],
        leader_only=strict,
    )
    timeout_s = max(0.001, min(left_s, cluster.attempt_s))
    try:
        reply = await cluster.ask_broker(address, request, timeout_s)
    except TinymqError as error:
        if not error.retriable and not isinstance(error, OutcomeUnknown):
            raise
        return dict.fromkeys(asks, error)
    # Each partition has its own answer or error. An error that may pass is kept for the text of the final error.
    answers: dict[int, pb.OffsetAnswer | TinymqError] = {}
    for answer in reply.answers:
        if not answer.HasField("error"):
            answers[answer.partition] = answer
            continue
        refusal = read_error(answer.error)
        if isinstance(refusal, NotLeader):
            cluster.learn(topic.name, answer.partition, refusal)
        elif not refusal.retriable and not await _passing(cluster, topic, answer.partition, refusal, timeout_s):
            raise refusal
        answers[answer.partition] = refusal
    return answers


async def _passing(cluster: Cluster, topic: Topic, partition: int, error: TinymqError, timeout_s: float) -> bool:
    """May the error pass? UnknownTopic passes if the broker lags behind a new topic, and not if it was deleted."""
    if error.code not in ("UnknownTopic", "UnknownPartition"):
        return False
    return await cluster.still_there(topic.name, topic.topic_id, timeout_s, partition)
