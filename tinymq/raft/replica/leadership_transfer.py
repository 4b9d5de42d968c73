"""How a leadership is handed over: to whom, whether it would be done at once, and until when it is tried."""

from __future__ import annotations

from tinymq.raft.leader.followers import BEHIND_ENTRIES_MAX
from tinymq.raft.leader.leadership import Leadership
from tinymq.raft.replica.following import FollowingReplica
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.messages import TimeoutNow


class TransferringReplica(FollowingReplica):
    """A replica that may give up what it leads."""

    @property
    def origin(self) -> LeadershipOrigin | None:
        """How this leadership came about; None when it does not lead."""
        return None if self._leadership is None else self._leadership.origin

    @property
    def is_transferring(self) -> bool:
        return self._leadership is not None and self._leadership.transfer_to is not None

    def transfer_obstacle(self, peer: int) -> str:
        """Why a hand-over to `peer` would not be done at once; "" when it would."""
        leadership = self._leadership
        if leadership is None:
            return "it is not led here"
        if leadership.transfer_to is not None:
            return f"it is being handed over to broker {leadership.transfer_to}"
        if not self._around.alive(peer):
            return f"broker {peer} is not alive"
        if not leadership.counts(self._configs, peer):
            return f"broker {peer} is not listed yet, or has not been heard in this term"
        missing = leadership.missing(peer)
        if missing is None or missing > BEHIND_ENTRIES_MAX:
            return f"broker {peer} is catching up" + (f": it lacks {missing:,} entries" if missing else "")
        return "a sync hangs" if leadership.sync_hangs() else ""

    def hand_over(self, to: int | None, until: float, manual: bool = False) -> bool:
        """Stop accepting, let a follower catch up, and make it stand. False when nobody can take over."""
        if self._leadership is None:
            return False
        able = self._leadership.successors(self._configs)
        if not able or to not in (None, *able):
            return False
        successor = able[0] if to is None else to
        self._leadership.transfer_to, self._leadership.transfer_until = successor, until
        self._leadership.transfer_manual = manual
        self._settle_at = self._around.now()
        self._around.wake()
        return True

    def _continue_hand_over(self, leadership: Leadership, successor: int, now: float) -> None:
        if now > leadership.transfer_until:
            leadership.transfer_to = None
        elif leadership.holds_all(successor):
            self._around.send(successor, TimeoutNow(leadership.term, leadership.transfer_manual))
