"""Surveys and orders of a recovery need proof of the secret, each once; and the tables of what the answers mean."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.raw_client import Raw
from tinymq.base.errors import InvalidRequest, OutcomeUnknown, WrongCluster, WrongSecret
from tinymq.base.types import METADATA_GROUP, GroupId, TopicId
from tinymq.broker.replicas.survey_wire import order_from_wire, order_to_wire, report_from_wire, report_to_wire
from tinymq.cli.verbs.recover import describe
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Replica
from tinymq.raft.rules.membership import Membership
from tinymq.raft.rules.quorum_loss import Healthy, QuorumLost, RecoveryOrder, ReplicaReport, Unrecoverable
from tinymq.rpc.common.proof import survey_proof, take_over_proof
from tinymq.rpc.operator_calls.cluster_recovery import Recovering, _assemble, take_survey
from tinymq.testing.cluster import SECRET, Cluster

NONCE = b"n" * 32
CLUSTER = b"c" * 16
TOPIC = GroupId(TopicId(b"t" * 16), 0)
OLD = {n: Replica(n, bytes([n]) * 16) for n in (1, 2, 3)}
NEW = {n: Replica(n, bytes([n + 100]) * 16) for n in (1, 2, 3)}


def test_only_for_who_proves_the_secret_and_each_challenge_once() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            survey = pb.SurveyRequest(nonce=NONCE, proof=survey_proof(b"another", NONCE))
            refused = await raw.admin.Survey(survey)
            assert (refused.error.code, refused.challenge, list(refused.replicas)) == ("WrongSecret", b"", [])
            survey.proof = survey_proof(SECRET, NONCE)
            first, second = await raw.admin.Survey(survey), await raw.admin.Survey(survey)
            assert first.challenge != second.challenge
            assert len(first.challenge) == 32
            (metadata,) = first.replicas
            assert (metadata.leads, metadata.healthy, metadata.identity) == (True, True, metadata.applied[0])
            orders = b""
            proof = take_over_proof(SECRET, first.challenge, orders)
            order = pb.TakeOverRequest(challenge=first.challenge, orders=orders, proof=proof)
            for change in ({"proof": b"x"}, {"orders": b"x"}, {"challenge": second.challenge}):
                changed = pb.TakeOverRequest()
                changed.CopyFrom(order)
                changed.MergeFrom(pb.TakeOverRequest(**change))
                assert (await raw.admin.TakeOver(changed)).error.code == "WrongSecret"
            assert not (await raw.admin.TakeOver(order)).HasField("error")
            assert (await raw.admin.TakeOver(order)).error.code == "WrongSecret", "it was recorded"

    with Cluster(nodes=1) as cluster:
        asyncio.run(main(cluster))


def test_an_order_that_makes_no_sense_changes_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        terms = cluster.call(lambda: [s.term for s in cluster.brokers[1].replica_statuses()])
        async with Raw(cluster.address(1)) as raw:
            one = order_to_wire(RecoveryOrder(METADATA_GROUP, 9, (1, 1), (OLD[1],)))
            for orders, code in (
                (b"\xff", "InvalidRequest"),
                (pb.TakeOverOrders(orders=[pb.TakeOverOrder()]).SerializeToString(), "InvalidRequest"),
                (pb.TakeOverOrders(orders=[one]).SerializeToString(), "NotReady"),
                (pb.TakeOverOrders(orders=[_elsewhere()]).SerializeToString(), "UnknownPartition"),
            ):
                survey = await raw.admin.Survey(pb.SurveyRequest(nonce=NONCE, proof=survey_proof(SECRET, NONCE)))
                proof = take_over_proof(SECRET, survey.challenge, orders)
                request = pb.TakeOverRequest(challenge=survey.challenge, orders=orders, proof=proof)
                reply = await raw.admin.TakeOver(request)
                assert code in (reply.error.code, *(result.error.code for result in reply.results))
        assert cluster.call(lambda: [s.term for s in cluster.brokers[1].replica_statuses()]) == terms

    with Cluster(nodes=1) as cluster:
        asyncio.run(main(cluster))


def _elsewhere() -> pb.TakeOverOrder:
    return order_to_wire(RecoveryOrder(TOPIC, 9, (1, 1), (OLD[1],)))


def test_brokers_known_to_other_brokers_are_asked_too() -> None:
    with Cluster(nodes=3) as cluster:
        survey = asyncio.run(take_survey([cluster.address(2)], SECRET, 5.0))
        assert sorted(survey.brokers) == [1, 2, 3]
        with pytest.raises(WrongSecret):
            asyncio.run(take_survey([cluster.address(2)], b"another secret of a cluster", 5.0))


# ---- the meaning of the answers --------------------------------------------------------------------------------


def report(replica: Replica, group: GroupId = METADATA_GROUP, index: int = 10, **changes: object) -> ReplicaReport:
    config = Membership(group, 1, tuple(OLD.values()))
    values = {
        "healthy": True,
        "leads": False,
        "term": 3,
        "last_term": 3,
        "last_index": index,
        "high_watermark": 4,
        "before_forced": (3, 9),
    }
    values["before_forced"] = (3, 9)
    return ReplicaReport(replica, applied=config, newest=config, **{**values, **changes})  # type: ignore[arg-type]


def answer(
    broker_id: int, *reports: ReplicaReport, alive: tuple[int, ...] = (), placed: bool = False
) -> pb.SurveyReply:
    reply = pb.SurveyReply(cluster_id=CLUSTER, broker_id=broker_id, state="running", alive=alive)
    reply.replicas.extend(map(report_to_wire, reports))
    if placed:
        reply.placed.add(topic="t", topic_id=TOPIC.topic_id, partition=0, replicas=[1, 2, 3])
    return reply


def test_reports_and_orders_cross_the_wire_whole() -> None:
    said = report(NEW[2], TOPIC, reason="damage", leads=True, healthy=False)
    assert report_from_wire(report_to_wire(said)) == said
    order = RecoveryOrder(TOPIC, 9, (4, 5), (OLD[1], NEW[2]))
    assert order_from_wire(order_to_wire(order)) == order
    for bad in (pb.TakeOverOrder(topic_id=b"short"), pb.TakeOverOrder(topic_id=bytes(16), replicas=[{}])):
        with pytest.raises(InvalidRequest):
            order_from_wire(bad)


def test_while_the_metadata_is_lost_partitions_are_a_forecast() -> None:
    survivor = answer(1, report(OLD[1]), report(OLD[1], TOPIC), placed=True)
    survey = _assemble({"a": survivor, "b": answer(2, report(NEW[2], index=1)), "c": "refused"})
    metadata, topic = survey.groups
    assert isinstance(metadata.verdict, QuorumLost)
    assert metadata.verdict.gone == [3]
    assert isinstance(topic.verdict, QuorumLost)
    assert topic.reports[1].reason == "opens once the metadata group has a leader"
    document = describe(survey)
    assert document["unreachable"] == {"c": "refused"}
    assert [group["topic"] for group in document["groups"]] == ["(metadata)", "t"]
    assert [sorted(group["brokers"]) for group in document["groups"]] == [["1", "2", "3"]] * 2
    assert document["groups"][0]["brokers"]["3"] == "missing"


def test_once_the_metadata_is_well_only_what_is_open_counts() -> None:
    survivor = answer(1, report(OLD[1], leads=True), report(OLD[1], TOPIC), placed=True)
    survey = _assemble({"a": survivor, "b": answer(2, report(NEW[2], index=1))})
    assert survey.groups[0].verdict == Healthy(1)
    assert isinstance(survey.groups[1].verdict, Unrecoverable)


def test_groups_of_a_broker_that_is_alive_and_was_not_asked_do_not_go_on() -> None:
    answers = {"a": answer(1, report(OLD[1]), alive=(1, 3)), "b": answer(2, report(NEW[2], index=1))}
    (metadata,) = _assemble(answers).groups
    assert isinstance(metadata.verdict, Unrecoverable)
    assert "broker 3 is alive" in metadata.verdict.why


def test_a_run_waits_for_a_better_log_that_it_has_seen() -> None:
    """While the metadata is recovered, the broker with the best log of a partition ends for a moment."""
    empty = {n: report(NEW[n], TOPIC, index=1, before_forced=(0, 1)) for n in (2, 3)}
    there = {
        "a": answer(1, report(OLD[1]), report(OLD[1], TOPIC), placed=True),
        "b": answer(2, report(NEW[2]), empty[2], placed=True),
        "c": answer(3, report(NEW[3]), empty[3], placed=True),
    }
    first = _assemble(dict(there))
    led = report(NEW[2], leads=True)
    there["b"] = answer(2, led, empty[2], placed=True)
    ordered: list[pb.TakeOverRequest] = []

    async def call(address: str, request: pb.SurveyRequest | pb.TakeOverRequest, timeout_s: float) -> object:
        if isinstance(request, pb.TakeOverRequest):
            ordered.append(request)
            return pb.TakeOverReply(results=[pb.TakeOverResult()])
        if address == "a":
            raise OutcomeUnknown("it has ended")
        return there[address]

    said: list[str] = []
    now = iter(range(100))
    recovering = Recovering(SECRET, 6.0, lambda: float(next(now)), said.append, call)
    left = asyncio.run(recovering.run(first, list(there)))
    orders = [order for request in ordered for order in pb.TakeOverOrders.FromString(request.orders).orders]
    assert {order.topic_id for order in orders} == {METADATA_GROUP.topic_id}
    assert [surveyed.group for surveyed in left.lost] == [TOPIC]
    assert said == ["t/0: a broker with a better log, up to entry 9, does not answer any more"]


def test_brokers_of_two_clusters_or_of_none() -> None:
    other = pb.SurveyReply(cluster_id=b"o" * 16, broker_id=2)
    with pytest.raises(WrongCluster):
        _assemble({"a": answer(1, report(OLD[1])), "b": other})
    with pytest.raises(InvalidRequest, match="none of these brokers"):
        _assemble({"a": pb.SurveyReply(broker_id=1, state="unformed")})
