"""Topics with weaker durability: in memory, or synced at intervals.

They lose only what a majority of their replicas had, and only when half of them or more ended. A replica in memory ends
with its process. A replica that is synced at intervals ends when its machine loses power or a sync of its disk fails.
In all other cases the same rules hold as for other topics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tinymq_chaos.broker_changes import QuorumRecovery
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import SettingsHistory, longest_interval_s

FILLED_S = 20.0  # after its end a broker's replica catches up: a broker that ended earlier lacks nothing
_ENDS = re.compile(r"broker (\d+) (loses power|is killed|has ended|has stopped|loses its disk|fails to sync)")
_UNSYNCED = {"loses power", "fails to sync"}  # either may lose unsynced entries: adr/0029
_PROCESS = {"loses power", "is killed", "has ended", "has stopped", "loses its disk"}
_SLOW = {"slow_disk", "hung_disk", "hung_file", "fail_sync", "disk_full", "disk_error", "no_room"}
_FAULT = re.compile(r"FAULT (\w+)(: | is over)")
ANSWERED_S = 1.0  # for which an earlier answer may be in flight
SYNCED_S = 0.5  # for a sync and its waiters, on a healthy disk
LOST = frozenset(
    {
        AnomalyKind.LOST_WRITE, AnomalyKind.INCONSISTENT_OFFSET, AnomalyKind.DIRTY_READ, AnomalyKind.NOT_A_PREFIX,
        AnomalyKind.NONMONOTONIC_POLL, AnomalyKind.SKIPPED_POLL, AnomalyKind.NONMONOTONIC_SEND,
        AnomalyKind.UNSEEN_WRITE, AnomalyKind.REORDERED, AnomalyKind.GAP, AnomalyKind.WRONG_TIME,
    }
)  # fmt: skip
"""The anomalies that a client sees when a group recovers with an earlier end than the client knows."""


def is_excused(facts: Facts, anomaly: Anomaly) -> bool:
    """Return whether the anomaly is part of the loss when the group recovered without a majority.

    A topic that is synced at intervals may lose the last moments before, and nothing else. Calls that begin after the
    recovery have all promises.
    """
    for revival in facts.history.revivals:
        about_before = min(anomaly.times_s, default=0.0) < revival.at_s + ANSWERED_S
        if revival.log == anomaly.log and anomaly.kind is AnomalyKind.UNCOMMITTED and about_before:
            return True
        if revival.log == anomaly.log and anomaly.kind in LOST and about_before:
            since_s = _lost_since_s(facts, revival)
            if anomaly.kind is not AnomalyKind.LOST_WRITE or since_s is None or min(anomaly.times_s) >= since_s:
                return True
    return False


def _lost_since_s(facts: Facts, revival: QuorumRecovery) -> float | None:
    """Return the time before which every acknowledged record was synced on a majority, before the machines of that
    majority lost power. None: no record is certain to be synced. The longest interval that may have been in force
    counts; while `sync` was `always` for certain, no interval counts."""
    settings = facts.history.topics.get(revival.log[0], {})
    if "sync" not in settings:
        return None
    cuts = sorted(_ends(facts, revival).values())
    majority = int(settings.get("replicas", "3")) // 2 + 1
    if len(cuts) < majority:
        return None
    cut_s = cuts[majority - 1]
    settings_then = SettingsHistory(facts, revival.log[0])
    values = settings_then.between("sync", cut_s - longest_interval_s(settings_then.between("sync", 0.0, cut_s)), cut_s)
    since_s = cut_s - longest_interval_s(values) - SYNCED_S
    return None if _slow_between(facts, since_s, cut_s) else since_s


def _slow_between(facts: Facts, since_s: float, until_s: float) -> bool:
    """Return whether some disk was slow, hung or full at any time between two."""
    began_s: dict[str, float] = {}
    for change in facts.history.changes:
        fault = _FAULT.match(change.what)
        if fault is None or fault[1] not in _SLOW:
            continue
        if fault[2] == ": ":
            began_s.setdefault(fault[1], change.at_s)
        elif began_s.pop(fault[1], math.inf) <= until_s and change.at_s >= since_s:
            return True
    return any(at_s <= until_s for at_s in began_s.values())


def needless_losses(facts: Facts) -> Iterator[Anomaly]:
    """A group gives up a majority of its replicas although their brokers had not ended."""
    for revival in facts.history.revivals:
        settings = facts.history.topics.get(revival.log[0], {})
        ended, replicas = _ends(facts, revival), int(settings.get("replicas", "3"))
        if 2 * len(ended) < replicas:
            how = "lost power or failed to sync" if "sync" in settings else "ended"
            what = f"went on without a majority of its {replicas} replicas, and brokers {sorted(ended)} {how}"
            yield Anomaly(AnomalyKind.NEEDLESS_LOSS, what, revival.log, times_s=(revival.at_s,))


def _ends(facts: Facts, revival: QuorumRecovery) -> dict[int, float]:
    """Return when each broker that may lack entries ended first, since it had all that was committed and since the
    group's last recovery."""
    others = [r.at_s for r in facts.history.revivals if r.log == revival.log and r.at_s < revival.at_s]
    commits = [at_s for at_s, _ in facts.history.commits.get(revival.log, ()) if at_s < revival.at_s]
    stood_s = max(commits, default=revival.at_s)  # since then the group has been stuck, and no replica caught up
    since_s = max([stood_s - FILLED_S, *others])
    counted = _UNSYNCED if "sync" in facts.history.topics.get(revival.log[0], {}) else _PROCESS
    ends: dict[int, list[float]] = {}
    for change in facts.history.changes:
        end = _ENDS.match(change.what)
        recent = since_s <= change.at_s <= revival.at_s
        if recent and end is not None and end[2] in counted:
            ends.setdefault(int(end[1]), []).append(change.at_s)
    full_s = _full_since_s(facts, revival)
    left = {broker: [at_s for at_s in each if at_s > full_s.get(broker, 0.0)] for broker, each in ends.items()}
    return {broker: min(each) for broker, each in left.items() if each}


def _full_since_s(facts: Facts, revival: QuorumRecovery) -> dict[int, float]:
    """Return when each broker certainly had all that was committed, synced, for the last time before the recovery.

    A replica that has caught up lacks nothing of before. It has synced that after the longest interval, unless it ended
    first.
    """
    values = SettingsHistory(facts, revival.log[0]).between("sync", 0.0, revival.at_s)
    wait_s = longest_interval_s(values) + SYNCED_S if values - {None} else 0.0
    full_s: dict[int, float] = {}
    for filled in facts.history.filled:
        synced_s = filled.at_s + wait_s
        ended = any(
            (end := _ENDS.match(change.what)) is not None and int(end[1]) == filled.broker
            for change in facts.history.changes if filled.at_s <= change.at_s <= synced_s
        )  # fmt: skip
        sure = not ended and not _slow_between(facts, filled.at_s, synced_s)
        if filled.log == revival.log and synced_s <= revival.at_s and sure:
            full_s[filled.broker] = synced_s
    return full_s
