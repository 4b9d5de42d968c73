"""A worker's place at one partition, as a pure object: grants, settlements, attachments, keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from tinymq.base.config import Limits
from tinymq.base.errors import SessionEnded, TinymqError
from tinymq.broker.serve.messages import pack_record
from tinymq.client.cluster.routing import Topic
from tinymq.client.work.grants import Grant, Verb, write_grants
from tinymq.client.work.job import Job, JobState
from tinymq.client.work.partition_work import Credit, JobSettlement, PartitionWork
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb

MAX_HANDLER_S = 60.0


class Place:
    """A partition's work, and what it says to the worker."""

    def __init__(self, keyed: bool = False) -> None:
        self.lost: list[int] = []
        self.sessions = count()
        self.requests = count(1)
        self.work = PartitionWork(
            Topic("t", b"t" * 16, ()),
            0,
            "g",
            7,
            credit=Credit(10, 10_000),
            limits=Limits(),
            max_handler_s=MAX_HANDLER_S,
            new_session=lambda: b"%016d" % next(self.sessions),
            settle=self.settle,
            wait=self.wait,
            lost=self._lose,
            worker=self,
        )
        self.attach(term=5, keyed=keyed)

    def check_transactional(self, cluster: object) -> None:
        """The worker is open, and of the same client."""

    def staged(self, work: PartitionWork) -> None:
        """Other jobs may come."""

    async def wait(self, job: Job, timeout_s: float | None) -> None:
        raise NotImplementedError("no test of this file waits")

    def _lose(self, job: Job, error: TinymqError) -> None:
        self.lost.append(job.offset)

    def attach(self, term: int, keyed: bool = False) -> pb.WorkAttach:
        said = self.work.attach(1, 0.0)
        self.work.on_attached(pb.WorkAttached(attachment=1, term=term, known=True, keyed=keyed))
        return said

    def grant(self, offset: int, term: int = 5, key: bytes | None = None, number: int | None = None) -> list[int]:
        """Grant a record. Returns the offsets that are to be handed out."""
        payload = pack_record(key, b"value", [], 0)
        granted = pb.WorkGranted(
            attachment=1,
            grants=write_grants([Grant(1, 1, offset, term, offset if number is None else number, 1)])[0],
            batches=[pb.WorkBatch(base_offset=offset, payload=payload, payload_crc=crc32c(payload))],
        )
        self.work.on_granted(granted, 0.0)
        return self.out()

    def out(self) -> list[int]:
        new, self.work.new = self.work.new, []
        return [job.offset for job in new]

    def settle(self, job: Job, verb: Verb, delay_s: float | None, error: str) -> None:
        job._state = JobState.RELEASED if verb is Verb.RELEASE else JobState.SETTLED
        self.work.settle(JobSettlement(verb, [job], delay_s, error))

    def said(self) -> Sequence[pb.WorkSettle]:
        return self.work.requests(lambda: next(self.requests))[0]


def test_a_grant_of_an_earlier_leader_is_dropped() -> None:
    place = Place()
    assert place.grant(0, term=4) == []
    assert place.grant(0, term=5) == [0]


def test_a_job_whose_settlement_has_no_answer_is_listed() -> None:
    place = Place()
    place.grant(0)
    place.settle(place.work.held[0], Verb.ACK, None, "")
    (sent,) = place.said()
    said = place.attach(term=6)
    assert [run.offset for grants in said.started for run in grants.runs] == [0]
    (again,) = place.said()
    assert (again.verb, again.grants) == (sent.verb, sent.grants)
    place.work.on_settled(pb.WorkSettled(attachment=1, request_id=again.request_id))
    assert not place.work.held
    assert not place.lost


def reattached(place: Place, verb: Verb | None, *, sent: bool, offset: int = 0) -> list[Verb]:
    """Settle a started job, attach again, and be told that its record is settled. Returns what is said after that."""
    place.grant(0)
    job = place.work.held[0]
    job._state = JobState.STARTED
    if verb is not None:
        place.settle(job, verb, None, "")
    if sent:
        place.said()
    place.work.attach(2, 0.0)
    grants = write_grants([job.grant])
    place.work.on_attached(pb.WorkAttached(attachment=2, term=6, known=True, lost=grants, settled=grants))
    return [Verb(settle.verb) for settle in place.said()]


def test_an_ack_without_an_answer_is_answered_by_the_next_attachment() -> None:
    place = Place()
    assert reattached(place, Verb.ACK, sent=True) == []
    assert (place.lost, place.work.held, place.work.unanswered) == ([], {}, False)


@pytest.mark.parametrize(("verb", "sent"), [(None, False), (Verb.ACK, False), (Verb.NACK, True), (Verb.REJECT, True)])
def test_nothing_else_is_answered_by_a_settled_record(verb: Verb | None, sent: bool) -> None:
    """Another worker has settled it: the job in hand, the ack that nobody got and the nack are lost."""
    place = Place()
    assert reattached(place, verb, sent=sent) == []
    assert (place.lost, place.work.held, place.work.unanswered) == ([0], {}, False)


def test_an_ack_of_an_earlier_grant_answers_nothing() -> None:
    place = Place()
    place.grant(0)
    place.settle(place.work.held[0], Verb.ACK, None, "")
    place.said()
    place.grant(0, number=9)
    assert place.lost == [0]
    newer = place.work.held[0]
    newer._state = JobState.STARTED
    grants = write_grants([newer.grant])
    place.work.attach(2, 0.0)
    place.work.on_attached(pb.WorkAttached(attachment=2, term=6, known=True, lost=grants, settled=grants))
    assert place.lost == [0, 0]


def test_after_the_end_of_a_session_the_next_one_asks_about_its_acks() -> None:
    """Of two records with a sent ack, one was settled before the session ended. The third one is in hand."""
    place = Place()
    for offset in range(3):
        place.grant(offset)
    held = dict(place.work.held)
    for offset in (0, 1):
        place.settle(held[offset], Verb.ACK, None, "")
    place.said()
    held[2]._state = JobState.STARTED
    place.work.on_ended(SessionEnded("it was silent"))
    assert place.lost == [2]
    listed = place.work.attach(3, 0.0)
    assert [run.count for grants in listed.started for run in grants.runs] == [2]
    lost, settled = write_grants([held[0].grant, held[1].grant]), write_grants([held[0].grant])
    place.work.on_attached(pb.WorkAttached(attachment=3, term=5, known=False, lost=lost, settled=settled))
    assert (place.lost, place.work.held, place.said()) == ([2, 1], {}, [])


def test_one_job_of_a_key_is_out_at_a_time_and_none_after_a_failure() -> None:
    place = Place(keyed=True)
    assert place.grant(0, key=b"red") == [0]
    assert place.grant(1, key=b"red") == []
    assert place.grant(2, key=b"red") == []
    assert place.grant(3, key=b"blue") == [3]
    place.settle(place.work.held[0], Verb.ACK, None, "")
    assert place.out() == [1]
    place.settle(place.work.held[1], Verb.NACK, None, "")
    assert place.out() == []
    said = [(settle.verb, [run.offset for run in settle.grants.runs]) for settle in place.said()]
    assert (Verb.RELEASE, [2]) in said


def test_after_the_end_of_its_session_a_worker_has_another_one_and_nothing() -> None:
    place = Place()
    place.grant(0)
    place.work.held[0]._state = JobState.STARTED
    first = place.work.attach(2, 0.0).session
    place.work.on_ended(SessionEnded("it was silent"))
    said = place.work.attach(3, 0.0)
    assert said.session != first
    assert (list(said.held), list(said.started)) == ([], [])
    assert place.lost == [0]


# ---- beginning jobs -------------------------------------------------------------------------------------------------


def test_a_job_is_begun_only_while_the_leader_has_answered_lately() -> None:
    """Another worker may have the record once the leader has missed this one for `rejoin_ms`."""
    place = Place()
    work = place.work
    work.on_attached(pb.WorkAttached(term=5, known=True, lease_ms=30_000, session_ms=10_000, rejoin_ms=3_000))
    place.grant(0)
    job = work.held[0]
    assert work.begins(job, 2.9)
    assert not work.begins(job, 3.0)
    work.parked.append(job)
    assert work.asks(3.0)
    assert work.resume(3.0) == []
    work.confirmation.on_answer(3.5)
    assert work.begins(job, 6.4)
    assert not work.asks(6.4)
    assert work.resume(6.4) == [job]


@pytest.mark.parametrize(
    ("reply", "valid_s"),
    [
        (pb.WorkAttached(lease_ms=30_000, session_ms=10_000, rejoin_ms=3_000), 3.0),
        (pb.WorkAttached(lease_ms=30_000, session_ms=2_000, rejoin_ms=3_000), 2.0),
        (pb.WorkAttached(lease_ms=4_000, session_ms=10_000, rejoin_ms=3_000), 2.0),
        (pb.WorkAttached(lease_ms=30_000, session_ms=10_000), 10.0),  # a broker that does not tell rejoin_ms yet
    ],
)
def test_an_answer_counts_for_the_shortest_time_in_which_the_leader_frees_records(
    reply: pb.WorkAttached, valid_s: float
) -> None:
    place = Place()
    place.work.on_attached(reply)
    assert place.work.confirmation.valid_s == valid_s


def test_a_job_that_is_extended_no_more_is_not_begun_and_goes_back() -> None:
    """So do the later ones of its key: the other worker would get them while this one has them."""
    place = Place(keyed=True)
    work = place.work
    for offset in (0, 1):
        place.grant(offset, key=b"k")
    first = work.held[0]
    work.confirmation.on_answer(MAX_HANDLER_S)
    work.keep(MAX_HANDLER_S)
    assert place.said() == [], "the leader may have leased it to another worker"
    assert not work.begins(first, MAX_HANDLER_S)
    work.parked.append(first)
    assert work.resume(MAX_HANDLER_S) == []
    said = place.said()
    assert {Verb(each.verb) for each in said} == {Verb.RELEASE}
    assert sorted(run.offset for each in said for run in each.grants.runs) == [0, 1]
    assert not place.lost


def test_a_parked_job_that_was_lost_meanwhile_is_not_begun() -> None:
    place = Place()
    place.grant(0)
    job = place.work.held[0]
    place.work.parked.append(job)
    place.work.on_lost(write_grants([job.grant])[0], SessionEnded("over"))
    assert place.work.resume(0.1) == []
    assert not place.work.parked
