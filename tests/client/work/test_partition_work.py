"""A worker's place at one partition, as a pure object: grants, settlements, attachments, keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tinymq.base.config import Limits
from tinymq.base.errors import SessionEnded, TinymqError
from tinymq.broker.serve.messages import pack_record
from tinymq.client.cluster.routing import Topic
from tinymq.client.work.grants import Grant, Verb, write_grants
from tinymq.client.work.job import Job, State
from tinymq.client.work.partition_work import Credit, PartitionWork, Settlement
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb


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
            new_session=lambda: b"%016d" % next(self.sessions),
            settle=self.settle,
            lost=self._lose,
        )
        self.attach(term=5, keyed=keyed)

    def _lose(self, job: Job, error: TinymqError) -> None:
        self.lost.append(job.offset)

    def attach(self, term: int, keyed: bool = False) -> pb.WorkAttach:
        said = self.work.attach(1)
        self.work.on_attached(pb.WorkAttached(attachment=1, term=term, known=True, keyed=keyed))
        return said

    def grant(self, offset: int, term: int = 5, key: bytes | None = None) -> list[int]:
        """Grant a record. Returns the offsets that are to be handed out."""
        payload = pack_record(key, b"value", [], 0)
        granted = pb.WorkGranted(
            attachment=1,
            grants=write_grants([Grant(1, 1, offset, term, offset, 1)])[0],
            batches=[pb.WorkBatch(base_offset=offset, payload=payload, payload_crc=crc32c(payload))],
        )
        self.work.on_granted(granted, 0.0)
        return self.out()

    def out(self) -> list[int]:
        new, self.work.new = self.work.new, []
        return [job.offset for job in new]

    def settle(self, job: Job, verb: Verb, delay_s: float | None, error: str) -> None:
        job.state = State.RELEASED if verb is Verb.RELEASE else State.SETTLED
        self.work.settle(Settlement(verb, [job], delay_s, error))

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
    place.work.held[0].state = State.STARTED
    first = place.work.attach(2).session
    place.work.on_ended(SessionEnded("it was silent"))
    said = place.work.attach(3)
    assert said.session != first
    assert (list(said.held), list(said.started)) == ([], [])
    assert place.lost == [0]
