"""A job's verbs, as a table: what each does after each other one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.client.work.test_partition_work import Place
from tinymq.base.errors import InvalidRequest, LeaseLost
from tinymq.client.work.grants import Verb
from tinymq.client.work.job import Job, JobState

VERBS: dict[Verb, Callable[[Job], None]] = {
    Verb.ACK: lambda job: job.ack(),
    Verb.NACK: lambda job: job.nack(delay=1.0),
    Verb.REJECT: lambda job: job.reject("no"),
    Verb.RELEASE: lambda job: job.release(),
}
OUTCOMES = {Verb.ACK: "acknowledged", Verb.NACK: "nacked", Verb.REJECT: "rejected", Verb.RELEASE: "released"}


def taken(state: JobState = JobState.TAKEN) -> tuple[Place, Job]:
    place = Place()
    place.grant(0)
    job = place.work.held[0]
    job._state = state
    return place, job


def said(place: Place) -> list[Verb]:
    return [Verb(settle.verb) for settle in place.said()]


@pytest.mark.parametrize(("first", "second"), list(product(VERBS, VERBS)))
def test_the_first_verb_decides_and_another_one_raises(first: Verb, second: Verb) -> None:
    place, job = taken()
    VERBS[first](job)
    if second is first:
        VERBS[second](job)
    else:
        with pytest.raises(InvalidRequest) as raised:
            VERBS[second](job)
        words = f"<Job t/0 at 0, delivery 1> is {OUTCOMES[first]} already: {second.name.lower()}() comes too late"
        assert raised.value.message == words
        assert "settle a job once" in raised.value.hint
    assert said(place) == [first]


@pytest.mark.parametrize("first", VERBS)
def test_a_settled_job_begins_no_lease_again(first: Verb) -> None:
    place, job = taken()
    VERBS[first](job)
    job.extend()
    job.start()
    assert said(place) == [first]


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK, Verb.REJECT])
def test_no_verb_raises_for_a_job_that_was_lost(verb: Verb) -> None:
    """The loss comes at any moment, in another thread: `on_lost` and `flush` tell of it."""
    place, job = taken(JobState.STARTED)
    place.work.on_lost(place.work.attach(2, 0.0).started[0], LeaseLost("a seek"))
    VERBS[verb](job)
    assert place.lost == [0]
    place.attach(5)
    assert said(place) == []


def test_a_begun_job_cannot_be_released_and_can_still_be_settled() -> None:
    place, job = taken(JobState.STARTED)
    with pytest.raises(InvalidRequest, match="is begun"):
        job.release()
    job.ack()
    assert said(place) == [Verb.ACK]
