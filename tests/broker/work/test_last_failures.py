"""Why deliveries failed, as a pure object: what workers report, and what nobody reports."""

from __future__ import annotations

from tinymq.broker.groups.lease_values import Era, Grant, Proposal
from tinymq.broker.state.queue_group import REJECTED, Charge
from tinymq.broker.work.attachment import Verb
from tinymq.broker.work.last_failures import RECORDS_MAX, FailureCause, LastFailures

ERA = Era(1, 1)


def grant(delivery: int, offset: int = 0) -> Grant:
    return Grant(offset, 1, delivery, delivery, ERA, True)


def told(failures: LastFailures) -> tuple[FailureCause, int, str, str]:
    failure = failures.get(0)
    assert failure is not None
    return failure.cause, failure.delivery, failure.reason, failure.worker


def charged(delivery: int, ends: bytes = b"") -> list[Proposal]:
    return [Proposal(ERA, charges=(Charge(0, delivery, 0),), ends=ends)]


def test_each_way_to_fail_has_its_cause_and_reason() -> None:
    failures = LastFailures()
    failures.note_verb(Verb.NACK, grant(1), "Traceback:\n  line\nValueError: busy\n", "w", 10)
    failures.note_charges(charged(1), 10)
    assert told(failures) == (FailureCause.NACK, 1, "ValueError: busy", "w"), "the charge is that of the nack"
    failures.note_charges(charged(2), 20)
    cause, delivery, reason, worker = told(failures)
    assert (cause, delivery, worker) == (FailureCause.LEASE_EXPIRED, 2, "")
    assert "the lease ran out" in reason
    assert reason.endswith("an earlier delivery failed: ValueError: busy")
    failures.note_charges(charged(3, ends=b"\xab" * 16), 30)
    cause, delivery, reason, worker = told(failures)
    assert (cause, delivery, worker) == (FailureCause.SESSION_ENDED, 3, "abababab")
    assert "died" in reason
    failures.note_verb(Verb.REJECT, grant(4), "", "w", 40)
    failures.note_charges(charged(4 | REJECTED), 40)
    assert told(failures) == (FailureCause.REJECT, 4, "", "w"), "an error of an earlier delivery is no reason to reject"
    failure = failures.get(0)
    assert failure is not None
    assert (failure.first_us, failure.last_us) == (10, 40)
    failures.forget(0)
    assert failures.get(0) is None
    failures.note_verb(Verb.NACK, grant(1), "before the seek", "w", 50)
    failures.clear()
    failures.note_charges(charged(1), 60)
    assert told(failures)[0] is FailureCause.LEASE_EXPIRED, "the first delivery of a new era is another one"


def test_a_caller_that_cannot_be_asked_has_let_its_lease_run_out() -> None:
    failures = LastFailures()
    failures.note_verb(Verb.EXPIRE, grant(1), "", "QueueService", 1)
    assert told(failures)[0] is FailureCause.LEASE_EXPIRED


def test_the_record_that_failed_least_recently_is_forgotten() -> None:
    failures = LastFailures()
    for offset in range(RECORDS_MAX + 1):
        failures.note_verb(Verb.NACK, grant(1, offset), "", "w", offset)
    assert failures.get(0) is None
    assert failures.get(1) is not None
