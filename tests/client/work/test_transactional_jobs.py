"""Jobs that a transaction has acked, at a worker's place at one partition, as a pure object."""

from __future__ import annotations

import pytest

from tests.client.work.test_partition_work import Place
from tinymq.base.errors import InvalidRequest, LeaseLost
from tinymq.client.work import transactional_jobs
from tinymq.client.work.grants import Verb, write_grants
from tinymq.client.work.job import Job, JobState
from tinymq.client.work.transactional_jobs import divided, note_staged
from tinymq.proto import tinymq_pb2 as pb


def begun(place: Place, *offsets: int) -> list[Job]:
    for offset in offsets:
        place.grant(offset)
        place.work.held[offset]._state = JobState.STARTED
    return [place.work.held[offset] for offset in offsets]


def lose(place: Place, job: Job) -> None:
    place.work.on_lost(write_grants([job.grant])[0], LeaseLost("a seek"))


def test_a_job_is_extended_and_listed_until_its_ack_is_staged() -> None:
    place = Place()
    (job,) = begun(place, 0)
    before = job._stage()
    assert (before, job.in_hand) == (JobState.STARTED, False)
    place.work.keep(1.0)
    (extended,) = place.said()
    assert Verb(extended.verb) is Verb.EXTEND
    assert [run.offset for grants in place.attach(term=6).started for run in grants.runs] == [0]
    note_staged(place.work, [job])
    assert not place.work.held
    place.work.keep(2.0)
    assert place.said() == []
    assert place.attach(term=7).started == []


def test_a_staged_ack_makes_room_for_another_record() -> None:
    place = Place()
    jobs = begun(place, 0, 1)
    credit = place.attach(term=5).credit_records
    for job in jobs:
        job._stage()
    note_staged(place.work, jobs)
    (raised,) = place.work.requests(lambda: 1)[1]
    assert raised.records == credit + 2


def test_of_a_job_that_is_lost_its_transaction_tells() -> None:
    place = Place()
    (job,) = begun(place, 0)
    before = job._stage()
    lose(place, job)
    assert (place.lost, type(job._loss)) == ([], LeaseLost)
    job._take_back(before)
    assert job._state is JobState.LOST
    with pytest.raises(LeaseLost):
        job._stage()


def test_a_loss_that_the_leader_told_beside_the_staging_means_nothing() -> None:
    place = Place()
    (job,) = begun(place, 0)
    job._stage()
    lose(place, job)
    note_staged(place.work, [job])
    assert job._loss is None


def test_a_job_that_was_not_staged_is_in_hand_again() -> None:
    place = Place()
    (job,) = begun(place, 0)
    job._take_back(job._stage())
    assert job.in_hand
    job.nack()
    assert [Verb(each.verb) for each in place.said()] == [Verb.NACK]


def test_a_job_in_a_transaction_takes_no_verb() -> None:
    place = Place()
    (job,) = begun(place, 0)
    job._stage()
    for verb in (job.ack, job.nack, job.reject, job.release):
        with pytest.raises(InvalidRequest, match="acked in a transaction"):
            verb()
    with pytest.raises(InvalidRequest, match="another transaction"):
        job._stage()
    assert place.said() == []


def test_a_settled_job_is_acked_in_no_transaction() -> None:
    place = Place()
    (job,) = begun(place, 0)
    job.reject("no")
    with pytest.raises(InvalidRequest, match="rejected already"):
        job._stage()


def test_jobs_are_divided_by_what_one_request_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_jobs, "JOBS_MAX", 2)
    place, other = Place(), Place()
    parts = list(divided([*begun(place, 0, 1, 2), *begun(other, 0)]))
    assert [[job.offset for job in part.jobs] for part in parts] == [[0, 1], [2], [0]]
    request = parts[0].request(pb.BatchTransaction(number=3))
    assert request.session == place.work._session
    assert [(run.offset, run.count) for run in request.grants.runs] == [(0, 2)]
    assert (parts[0].cursor.channel, parts[0].cursor.group.group_id, parts[0].cursor.group.kind) == ("g", 7, 2)
