"""Leaders come home: what is led here because its preferred broker was away is given back to it, one by one.

`decide` is pure; `PreferredLeaders` looks on a clock for as long as there is something to give back. Gently: one
hand-over at a time, each short, a pause before the next, only to a replica that would take it at once, on a broker that
has been alive and registered for a while. One that did not take what it was given, or gave it away while it lived, is
left alone for longer each time. What an operator moved stays (docs/adr/0014), and so does the registry's own group.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tinymq.base.clock import Clock, Timer
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.raft import Group, LeadershipOrigin

LOOK_S = 1.0  # between two looks
WATCH_S = 0.02  # between two while something is being handed over
PAUSE_S = (0.2, 0.6)  # after a hand-over, at random: brokers that give back to the same one do not do it in step
TRY_S = 1.0  # a hand-over that is not done by then is given up: writers wait for it
ALONE_S_MIN = 30.0  # for how long a broker is left alone that did not keep what it was given; doubled each time
ALONE_S_MAX = 900.0

logger = structlog.get_logger("tinymq.broker")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A group that is led here, and prefers another broker."""

    group: GroupId
    preferred: int
    origin: LeadershipOrigin  # how it came to be led here
    since_s: float  # monotonic time
    ready: bool  # the preferred replica would take over at once, and nothing hangs here


@dataclass(frozen=True, slots=True)
class Target:
    """A broker that groups may be given back to, as known here."""

    alive_since_s: float
    registered: bool
    alone_until_s: float = 0.0


def decide(away: Iterable[Misplaced], homes: Mapping[int, Target], now_s: float, return_s: float) -> Misplaced | None:
    """What to give back now, if anything: what has been led here longest. `homes`: the brokers that are alive."""
    able = [each for each in away if each.ready and may_return(each, homes.get(each.preferred), now_s, return_s)]
    return min(able, key=lambda each: (each.since_s, each.group.topic_id, each.group.partition), default=None)


def may_return(away: Misplaced, home: Target | None, now_s: float, return_s: float) -> bool:
    """Return whether a leadership may go back to its preferred broker now."""
    if home is None or not home.registered or now_s < home.alone_until_s:
        return False
    if away.origin is LeadershipOrigin.MANUAL and home.alive_since_s <= away.since_s:
        return False  # taken by hand from a broker that was there, and has been since
    return now_s - max(home.alive_since_s, away.since_s) >= return_s


@dataclass(frozen=True, slots=True)
class Backoff:
    """A broker did not keep what it was given."""

    at_s: float
    alone_s: float

    def again(self, now_s: float) -> Backoff:
        lately = now_s - self.at_s < self.alone_s + ALONE_S_MAX
        return Backoff(now_s, min(ALONE_S_MAX, 2 * self.alone_s) if lately else ALONE_S_MIN)


class LeadershipHost(Protocol):
    """What giving back asks of the Raft host (tinymq.raft.Host)."""

    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def alive(self, broker_id: int) -> bool: ...
    def transfer(self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None) -> bool: ...


class PreferredLeaders:
    """One broker's. Tell it when groups and brokers change; nothing is done, and no timer set, until something is led
    here that prefers another broker. `registered`: does the registry know that broker?"""

    def __init__(
        self, broker_id: int, host: LeadershipHost, registered: Callable[[int], bool], clock: Clock, rng: random.Random,
        return_s: float,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._host = host
        self._registered = registered
        self._clock = clock
        self._rng = rng
        self._return_s = return_s
        self._since_s: dict[GroupId, tuple[int, float]] = {}  # away: led in which term, and since when
        self._began_s = clock.monotonic()
        self._alive_since_s: dict[int, float] = {}  # of those that came after that
        self._strikes: dict[int, Backoff] = {}
        self._trying: tuple[GroupId, int] | None = None  # what is being given back, and to whom
        self._timer: Timer | None = None
        self._stopped = False

    def stop(self) -> None:
        """Give nothing back any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- what happens --------------------------------------------------------------------------------------

    def peer_changed(self, broker_id: int, alive: bool) -> None:
        """A broker is alive (again), which forgives it everything; or it is gone."""
        self._strikes.pop(broker_id, None)
        if alive:
            self._alive_since_s[broker_id] = self._clock.monotonic()
        else:
            self._alive_since_s.pop(broker_id, None)

    def group_changed(self, group: Group) -> None:
        """Role, leader or term of a group is another."""
        if group.id == METADATA_GROUP:
            return
        preferred = group.membership.replicas[0].broker_id
        if not group.is_leader or preferred == self._broker_id:
            self._since_s.pop(group.id, None)
            return
        known = self._since_s.get(group.id)
        if known is None or known[0] != group.term:
            self._since_s[group.id] = group.term, self._clock.monotonic()
            if (
                group.origin is LeadershipOrigin.TRANSFERRED
                and self._host.alive(preferred)
                and self._registered(preferred)
            ):
                self.back_off(preferred)  # it is there, and does not lead: its disk hung, or it did so lately
        if self._timer is None and not self._stopped:
            self._look_in(LOOK_S)

    def back_off(self, broker_id: int) -> None:
        """Give nothing to a broker that did not keep what it got; the pause doubles each time."""
        now_s = self._clock.monotonic()
        known = self._strikes.get(broker_id)
        if known is None or known.at_s < now_s:  # many groups of one broker at one moment are one strike
            self._strikes[broker_id] = Backoff(now_s, ALONE_S_MIN) if known is None else known.again(now_s)

    # ---- looking -------------------------------------------------------------------------------------------

    def _look_in(self, seconds: float) -> None:
        self._timer = self._clock.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._trying is not None and self._is_under_way(*self._trying):
            self._look_in(WATCH_S)
        elif self._trying is not None:
            self._trying = None
            self._look_in(self._rng.uniform(*PAUSE_S))
        elif (chosen := decide(self.misplaced(), self._homes(), self._clock.monotonic(), self._return_s)) is not None:
            logger.info("leader_returns", group=str(chosen.group), to=chosen.preferred)
            self._host.transfer(chosen.group, chosen.preferred, within_s=TRY_S)
            self._trying = chosen.group, chosen.preferred
            self._look_in(WATCH_S)
        elif self._since_s:
            self._look_in(LOOK_S)

    def _is_under_way(self, group_id: GroupId, to: int) -> bool:
        group = self._host.groups.get(group_id)
        if group is None or not group.is_leader:
            return False
        if group.is_transferring:
            return True
        logger.warning("leader_not_returned", group=str(group_id), to=to)
        self.back_off(to)
        return False

    def misplaced(self) -> list[Misplaced]:
        """Return the groups that this broker leads and another broker is preferred for."""
        found = []
        for group_id, (_, since_s) in list(self._since_s.items()):
            group = self._host.groups.get(group_id)
            if group is None or group.origin is None:
                del self._since_s[group_id]
            else:
                preferred = group.membership.replicas[0].broker_id
                found.append(
                    Misplaced(group_id, preferred, group.origin, since_s, not group.transfer_obstacle(preferred))
                )
        return found

    def _homes(self) -> dict[int, Target]:
        homes = {}
        for broker_id in {self._host.groups[g].membership.replicas[0].broker_id: None for g in self._since_s}:
            if self._host.alive(broker_id):
                since_s = self._alive_since_s.get(broker_id, self._began_s)
                strike = self._strikes.get(broker_id)
                until_s = 0.0 if strike is None else strike.at_s + strike.alone_s
                homes[broker_id] = Target(since_s, self._registered(broker_id), until_s)
        return homes
