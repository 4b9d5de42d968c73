"""The exceptions by which a handler decides what happens to its record. Every other exception follows the group's own
policy."""

from __future__ import annotations

from tinymq.base.errors import InvalidRequest
from tinymq.client.work.job import DELAY_S_MAX


class Retry(Exception):
    """Raised by a handler: deliver the record again, after a pause.

    `delay`: seconds, from 0 to 30 days; None: the next pause of the group, or of the handler of a stream group.
    `reason`: for people. In a queue group the delivery counts as failed, so the last one becomes a dead letter. In a
    stream group the record's partition waits. Raises InvalidRequest (delay).

        @mq.subscribe("emails", group="mailer", kind="queue")
        def send(job):
            if not mail_server.ready():
                raise Retry(delay=60, reason="the mail server rests")
    """

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        if delay is not None and not 0 <= delay <= DELAY_S_MAX:
            raise InvalidRequest(f"delay={delay!r}", hint=f"pass seconds, from 0 to {DELAY_S_MAX:g}, or None")
        super().__init__(reason or "the handler asks for another delivery")
        self.delay = delay
        self.reason = reason


class Reject(Exception):
    """Raised by a handler: no delivery of this record can succeed.

    In a queue group the record becomes a dead letter, with `reason`. In a stream group it is skipped.

        @mq.subscribe("emails", group="mailer", kind="queue")
        def send(job):
            if not job.header("to"):
                raise Reject("nobody to send it to")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejects the record")
        self.reason = reason
