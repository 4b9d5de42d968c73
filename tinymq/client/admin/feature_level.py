"""The cluster's feature level, as `client.admin` returns it. Pure: turns replies of brokers into values.

A broker whose build has no feature levels does not know the call. The result lists it with level 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import BrokerUnreachable, TinymqError, Unavailable, UnsupportedVersion
from tinymq.proto import tinymq_pb2 as pb

OLD_LEVEL = 1  # the level of a build that has no feature levels


@dataclass(frozen=True, slots=True)
class FeatureLevelMember:
    """A broker that bounds the cluster's level, because the level is never above one that a broker announces."""

    broker_id: int
    announced: int  # when it last registered
    registered: bool
    voter: bool
    replicas: int
    known: int | None  # the level that its build knows; None: the broker does not answer
    held: int  # the highest level that an operator lets it announce; 0: it is not held


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The cluster's level, and the levels that its members announce and know."""

    level: int
    members: tuple[FeatureLevelMember, ...]  # by id
    silent: Mapping[int, str]  # brokers that do not answer, and why

    @property
    def can_rise(self) -> bool:
        """Does a member know a higher level than the cluster's?"""
        return any((member.known or member.announced) > self.level for member in self.members)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Members that keep the cluster at its level, because they announce no higher one. None if no member knows a
        higher one: then nothing waits."""
        return tuple(m.broker_id for m in self.members if self.can_rise and m.announced <= self.level)


def read(replies: Mapping[int, Any]) -> FeatureLevel:
    """Combine the brokers' replies, by id: a FeatureLevelReply each, or an error.

    Raises the error of a broker that refuses the request. If no broker answers, raises the last error.
    """
    # A broker that is unreachable or of an old build does not keep the others from an answer. Any other error is a
    # refusal of the request itself, and every broker would give it.
    for reply in replies.values():
        if isinstance(reply, TinymqError) and not isinstance(reply, Unavailable | UnsupportedVersion):
            raise reply
    answers = {broker_id: reply for broker_id, reply in replies.items() if isinstance(reply, pb.FeatureLevelReply)}
    old = {broker_id for broker_id, reply in replies.items() if isinstance(reply, UnsupportedVersion)}
    silent = {
        broker_id: reply.message
        for broker_id, reply in replies.items()
        if isinstance(reply, TinymqError) and broker_id not in old
    }
    if not answers:
        raise _failed(replies, old)
    # Brokers hear of a new level one after the other. The highest level is the present one, because it never falls; of
    # the brokers that know it, the one that knows the most members is the best informed.
    best = max(answers.values(), key=lambda reply: (reply.level, len(reply.members)))
    members = []
    for member in best.members:
        answer = answers.get(member.broker_id)
        known = OLD_LEVEL if member.broker_id in old else answer.known if answer is not None else None
        members.append(
            FeatureLevelMember(
                broker_id=member.broker_id,
                announced=member.announced,
                registered=member.registered,
                voter=member.voter,
                replicas=member.replicas,
                known=known,
                held=answer.held if answer is not None else 0,
            )
        )
    return FeatureLevel(best.level, tuple(members), silent)


def _failed(replies: Mapping[int, Any], old: set[int]) -> TinymqError:
    if old:
        hint = "upgrade a broker first; the cluster is at feature level 1"
        return UnsupportedVersion("no broker of this cluster knows feature levels", hint=hint)
    errors = [reply for reply in replies.values() if isinstance(reply, TinymqError)]
    return errors[-1] if errors else BrokerUnreachable("no broker answers")
