"""How long a worker may rely on the newest answer of a partition's leader. No I/O."""

from __future__ import annotations

from tinymq.proto import tinymq_pb2 as pb

LEAST_S = 1.0  # the shortest lease and session that a group may have


class Confirmation:
    """The group's times, and when the worker sent the newest message that the leader has answered."""

    def __init__(self) -> None:
        self.lease_s = LEAST_S  # until the leader tells
        self.session_s = LEAST_S
        self.rejoin_s = LEAST_S
        self._sent_s = 0.0
        self._until_s = 0.0  # kept, because each job that is handed out asks for it

    def on_attached(self, reply: pb.WorkAttached, sent_s: float) -> None:
        """The leader has answered the attachment that was sent at `sent_s`, in seconds of the monotonic clock."""
        self.lease_s = reply.lease_ms / 1000 or self.lease_s
        self.session_s = reply.session_ms / 1000 or self.session_s
        self.rejoin_s = reply.rejoin_ms / 1000 or self.session_s  # 0: from a broker that does not tell it yet
        self.on_answer(sent_s)

    def on_answer(self, sent_s: float) -> None:
        """The leader has answered a message that was sent at `sent_s`."""
        self._sent_s = max(self._sent_s, sent_s)
        self._until_s = self._sent_s + self.valid_s

    @property
    def valid_s(self) -> float:
        """How long after that message the leader frees no record that it has leased to this worker.

        It may end the session once the connection has been broken for `rejoin_s`, or silent for `session_s`. A lease
        has at least two thirds of `lease_s` left, because the worker extends it three times in that time.
        """
        return min(self.rejoin_s, self.session_s, self.lease_s / 2)

    def is_valid(self, now_s: float) -> bool:
        """Whether no other worker can have the records that the leader has leased to this one."""
        return now_s < self._until_s
