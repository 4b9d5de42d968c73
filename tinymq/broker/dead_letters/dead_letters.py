"""The dead letters of one broker: burials, the receiver of copies, redrives, and the stories of records."""

from __future__ import annotations

import asyncio

from tinymq.base.clock import Clock
from tinymq.base.meter import Meter
from tinymq.base.types import GroupId
from tinymq.broker.dead_letters.burials import Burials
from tinymq.broker.dead_letters.courier import METHOD, Courier
from tinymq.broker.dead_letters.receiver import Receiver
from tinymq.broker.dead_letters.redrive import Redrive
from tinymq.broker.dead_letters.story import Stories
from tinymq.broker.groups.groups import Groups, Peers
from tinymq.broker.serve.broker import Broker


class DeadLetters:
    """From `start` to `stop`. All calls on the loop."""

    def __init__(self, broker: Broker, groups: Groups, peers: Peers, clock: Clock, meter: Meter) -> None:
        courier = Courier(peers)
        self.burials = Burials(broker, groups.known, courier, clock, meter)
        self.redrives = Redrive(broker, groups, courier)
        self.stories = Stories(broker, groups.known, self.burials, courier)
        peers.serve(METHOD, Receiver(broker).serve)

    def start(self) -> asyncio.Task[None]:
        """Go on with what earlier leaders began."""
        return self.burials.start()

    async def stop(self) -> None:
        await self.burials.stop()

    def group_changed(self, group: GroupId) -> None:
        """Note that the leader of a Raft group may have changed."""
        self.burials.group_changed(group)
