"""Topics that promise less: in memory, or synced at intervals. They lose only what a majority of their replicas had,
and only when a majority ended: of processes, or of machines without power. Else all that holds for others holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tinymq_chaos.checkers.anomaly import Anomaly, Kind
from tinymq_chaos.checkers.facts import Facts

FILLED_S = 20.0  # after its end a broker's replica is filled again: one that ended before that is not missing any more
_ENDS = re.compile(r"broker (\d+) (loses power|is killed|has ended|has stopped|loses its disk)")
_POWER = "loses power"
LOST = frozenset(
    {
        Kind.LOST_WRITE, Kind.INCONSISTENT_OFFSET, Kind.DIRTY_READ, Kind.NOT_A_PREFIX, Kind.NONMONOTONIC_POLL,
        Kind.SKIPPED_POLL, Kind.NONMONOTONIC_SEND, Kind.UNSEEN_WRITE, Kind.UNCOMMITTED, Kind.REORDERED, Kind.GAP,
    }
)  # fmt: skip
"""What a group that went on with an earlier end shows to those who know a later one."""


def is_excused(facts: Facts, anomaly: Anomaly) -> bool:
    """Is it what was lost when this group went on without a majority?"""
    return anomaly.kind in LOST and any(revival.log == anomaly.log for revival in facts.history.revivals)


def needless_losses(facts: Facts) -> Iterator[Anomaly]:
    """A group gives up a majority of its replicas, and the brokers that held them had not ended."""
    for revival in facts.history.revivals:
        settings = facts.history.topics.get(revival.log[0], {})
        in_memory = settings.get("storage") == "memory"
        ended = {
            int(found[1])
            for change in facts.history.changes
            if revival.at_s - FILLED_S <= change.at_s <= revival.at_s
            and (found := _ENDS.match(change.what)) is not None
            and (in_memory or found[2] == _POWER)
        }
        replicas = int(settings.get("replicas", "3"))
        if 2 * len(ended) < replicas:
            how = "ended" if in_memory else "lost power"
            what = f"went on without a majority of its {replicas} replicas, and brokers {sorted(ended)} {how}"
            yield Anomaly(Kind.NEEDLESS_LOSS, what, revival.log, times_s=(revival.at_s,))
