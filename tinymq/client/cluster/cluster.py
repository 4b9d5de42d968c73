"""The cluster as one client sees it: its view, the health of brokers, and calls that any broker answers.

Everything runs on one loop. A call has a deadline, and ends with an answer, a definite failure or OutcomeUnknown. A
retriable error is never raised before the deadline.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tinymq.base.clock import Clock
from tinymq.base.errors import (
    BrokerUnreachable,
    Denied,
    NotLeader,
    OutcomeUnknown,
    TinymqError,
    UnknownTopic,
)
from tinymq.base.retry import Attempts, Backoff, retry_until
from tinymq.client.cluster import routing
from tinymq.client.cluster.broker_health import ClusterHealth
from tinymq.client.cluster.call_errors import error_of, give_up, is_unformed, may_pass, reason_of, wrong_loop
from tinymq.client.cluster.routing import Reach, Topic, View
from tinymq.client.common import forks
from tinymq.client.common.config import ClientConfig
from tinymq.client.net.broker_streams import BrokerProduceStream
from tinymq.client.net.connections import Connections
from tinymq.client.net.ports import Connector
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import REPEATED_MAX

LOG = logging.getLogger("tinymq.client")

BACKOFF = Backoff(0.02, 0.5)
JITTERED = Backoff(0.02, 0.5, jitter=0.5)
CHANGE_S_MIN = 0.1  # the least time for a last attempt at a change; a shorter one could only end as OutcomeUnknown
REFRESH_GAP_S = 0.05  # the least time between two refreshes that errors asked for
NAMES_MAX = REPEATED_MAX["MetadataRequest.topics"]
METADATA_ATTEMPT_S = 1.0
WATCH_S = 0.2  # how often silent streams are looked for
# These wait for leaders, so the time until the answer is no latency.
WAITING = (
    pb.CreateTopicRequest, pb.AddPartitionRequest, pb.CreateGroupRequest, pb.DeleteGroupRequest,
    pb.RegisterOwnerRequest, pb.CommitTransactionRequest, pb.OpenSetRequest, pb.CommitSetsRequest,
)  # fmt: skip


class Cluster:
    """The state that producers, readers and admin calls of one client share.

    The calls in `changed` are made when the view or a produce stream has changed.
    """

    def __init__(
        self, servers: Sequence[str], config: ClientConfig, connector: Connector, clock: Clock, rng: random.Random
    ) -> None:
        self.loop = asyncio.get_running_loop()  # everything in this object belongs to this loop
        self.view = View()
        self.config = config
        self.clock = clock
        self.rng = rng
        self.health = ClusterHealth()
        self.changed: dict[Callable[[], None], None] = {}  # a set that keeps the order of registration
        self.closed = False
        self._served = False  # has a broker ever answered without an error?
        self._servers = tuple(servers)
        self.connections = Connections(connector, clock, self, self.attempt_s, self.changed)
        self._names: set[str] = set()  # the topics that this client uses; each refresh asks for them
        self._requests = 0  # the last request id of a batch
        self._refreshed_s = 0.0  # when the last refresh ended
        self._refreshing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_copy = False  # in a forked child
        forks.in_child(self, Cluster._forked)

    # ---- connections ---------------------------------------------------------------------------------

    def produce_stream(self, broker_id: int) -> BrokerProduceStream | None:
        """Return the produce stream to a broker, open or not; None if the broker's address is not known."""
        address = self.view.address(broker_id)
        return self.connections.produce(address) if address is not None else None

    def next_request(self) -> int:
        """Return a new request id for a batch. It is unique in the client, whose producers share the streams."""
        self._requests += 1
        return self._requests

    @property
    def attempt_s(self) -> float:
        """How long one attempt at one broker may take, in seconds."""
        return self.config.attempt_timeout_ms / 1000

    def answered(self, address: str, latency_s: float) -> None:
        """Note that a broker has answered after `latency_s`."""
        self.health.answered(address, latency_s, self.clock.monotonic())
        self.connections.heard(address)

    def broke(self, address: str, error: TinymqError) -> None:
        """Note that a connection to a broker has broken."""
        if self.closed:
            return
        self.health.failed(address, error.message, self.clock.monotonic())
        self.refresh_soon()

    def trouble(self, known: Mapping[str, str] | None = None) -> str:
        """Return "address: reason" for every address that fails now, and those in `known`; "" if none does."""
        reasons = {address: self.health.reason(address) for address in sorted(self.addresses())} | dict(known or {})
        return "; ".join(f"{address}: {reason}" for address, reason in reasons.items() if reason)

    def cost(self, broker_id: int) -> tuple[float, float]:
        """Return (seconds for which a broker is still avoided, its usual latency in seconds)."""
        address = self.view.address(broker_id)
        return self.health.cost(address, self.clock.monotonic()) if address else (0.0, 0.0)

    def reach(self, broker_id: int) -> Reach:
        """Return how well this client could send to a leader lately."""
        broker = self.view.brokers.get(broker_id)
        if not broker_id:
            return Reach.NOBODY
        if broker is None or not broker.alive or self.health.failing(broker.address):
            return Reach.LOST
        return Reach.SLOW if self.health.cost(broker.address, self.clock.monotonic())[0] else Reach.GOOD

    def opened(self, address: str) -> None:
        """Note that a connection to a broker was opened, so the broker is alive."""
        self.health.forgive(address)

    def retry_s(self, broker_id: int) -> float:
        """Return the seconds until a partition's leader may be tried again. No other broker can stand in for it."""
        address = self.view.address(broker_id)
        return self.health.retry_s(address, self.clock.monotonic()) if address else 0.0

    def forgive(self, broker_id: int) -> None:
        """Stop avoiding a broker, because there is news of it."""
        address = self.view.address(broker_id)
        if address is not None:
            self.health.forgive(address)

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the caller runs on the client's event loop: elsewhere it might wait for ever.

        Raises Closed in a forked child.
        """
        if self._is_copy:
            raise forks.forked()
        if asyncio.get_running_loop() is not self.loop:
            raise wrong_loop(self.loop)

    def _forked(self) -> None:
        self._is_copy = True

    def countdown(self, timeout_s: float) -> Callable[[], float]:
        """Return a function that returns how many of these seconds are left, for calls of several steps."""
        deadline_s = self.clock.monotonic() + timeout_s
        return lambda: max(0.0, deadline_s - self.clock.monotonic())

    def attempts(self, timeout_s: float, backoff: Backoff = BACKOFF, *, stop_s: float = 0.0) -> Attempts:
        """Return the attempts of a call to leaders within `timeout_s`. Before each pause the client asks for fresh
        metadata, because another broker may lead by then. No attempt begins with `stop_s` or less left."""
        deadline_s = self.clock.monotonic() + timeout_s
        return retry_until(deadline_s, self.clock, backoff, rng=self.rng, stop_s=stop_s, before_pause=self.refresh_soon)

    async def close(self) -> None:
        self.closed = True
        tasks = [t for t in (self._refreshing, self._watching) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connections.close()

    # ---- questions -----------------------------------------------------------------------------------

    async def ask(
        self, request: Any, *, timeout_s: float, attempt_s: float | None = None, changes: bool = False
    ) -> Any:
        """Ask one broker after the other until one answers. `changes`: an unanswered request may have taken effect.

        Raises a definite error that a broker answered. At the deadline it raises OutcomeUnknown if an attempt may have
        taken effect; else the last answer if that was QuotaExceeded, or a NotReady that names missing brokers; else
        DeadlineExceeded if any broker answered; else BrokerUnreachable, with the last reason of every address. A client
        that no broker has served yet gives up after connect_timeout_ms if every address refuses or is unformed. An
        error that follows an attempt of unknown outcome has the detail `unclear`.
        """
        whole_s = attempt_s or self.attempt_s
        began_s = self.clock.monotonic()
        attempts = retry_until(began_s + timeout_s, self.clock, JITTERED, rng=self.rng)
        reasons: dict[str, str] = {}
        last: TinymqError | None = None
        unclear: TinymqError | None = None
        async for attempt in attempts:
            nobody = not self._served  # does every address refuse, or wait to be formed, in this pass?
            for address in self.addresses():
                left_s = attempt.left_s
                if left_s <= 0 or (changes and last is not None and left_s < CHANGE_S_MIN):
                    raise give_up(request, timeout_s, reasons, last, unclear)
                try:
                    reply = await self._attempt(address, request, min(left_s, whole_s))
                except BrokerUnreachable as error:
                    reasons[address] = reason_of(error, address)
                except OutcomeUnknown as error:
                    nobody = False
                    # An attempt that the deadline cut short tells nothing: keep what the broker said before.
                    reasons[address] = (left_s < whole_s and reasons.get(address)) or reason_of(error, address)
                    unclear = error if changes else unclear
                else:
                    error_in = error_of(reply)
                    if error_in is None:
                        self._served = True
                        return reply
                    nobody = nobody and is_unformed(error_in)
                    if isinstance(error_in, OutcomeUnknown) and changes:
                        unclear = error_in
                    elif not may_pass(error_in):
                        if unclear is not None:
                            error_in.detail["unclear"] = "true"
                        raise error_in
                    last = error_in
                    reasons[address] = error_in.message
            # A wrong address, or a cluster that nobody formed: more time would change nothing.
            if nobody and self.clock.monotonic() - began_s >= self.config.connect_timeout_ms / 1000:
                break
        raise give_up(request, timeout_s, reasons, last, unclear)

    async def ask_broker(self, address: str, request: Any, timeout_s: float) -> Any:
        """Ask one broker once. Raises the error that it answered, BrokerUnreachable or OutcomeUnknown."""
        reply = await self._attempt(address, request, timeout_s)
        error = error_of(reply)
        if error is not None:
            raise error
        return reply

    async def _attempt(self, address: str, request: Any, timeout_s: float) -> Any:
        self.check_loop()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        started_s = self.clock.monotonic()
        try:
            reply = await self.connections.link(address).call(request, timeout_s)
        except (BrokerUnreachable, OutcomeUnknown) as error:
            self.health.failed(address, error.message, self.clock.monotonic())
            raise
        if not isinstance(request, WAITING):
            self.answered(address, self.clock.monotonic() - started_s)
        return reply

    def addresses(self) -> list[str]:
        """Return all known addresses, the preferred ones first."""
        now_s = self.clock.monotonic()
        known = {b.address: not b.alive for b in self.view.brokers.values()}
        for address in self._servers:
            known.setdefault(address, False)
        shuffled = list(known)
        self.rng.shuffle(shuffled)
        return sorted(shuffled, key=lambda a: (self.health.cost(a, now_s)[0] > 0, known[a]))

    # ---- the view ------------------------------------------------------------------------------------

    def update(self, view: View) -> None:
        """Replace the view, and make the calls in `changed` if it is another one."""
        if view is not self.view:
            self.view = view
            for call in list(self.changed):
                call()

    def learn(self, topic: str, partition: int, error: NotLeader) -> bool:
        """Learn the leader that a NotLeader answer names. True: another leader is known now."""
        before = self.view
        self.update(routing.learn_from(before, topic, partition, error))
        return self.view is not before

    def refresh_soon(self) -> None:
        """Ask for metadata in the background, unless a refresh is running already."""
        if self.closed or (self._refreshing is not None and not self._refreshing.done()):
            return
        self._refreshing = asyncio.create_task(self._refresh_in_background())

    async def refresh(
        self, names: Iterable[str] = (), *, timeout_s: float, every: bool = False, fresh: bool = False
    ) -> View:
        """Ask for the metadata of the topics in use and of `names`, and return the new view.

        With `every`, all topics are asked for. With `fresh`, the answer is as of a moment during this call.
        """
        asked = sorted({*self._names, *names})
        attempt_s = min(self.attempt_s, METADATA_ATTEMPT_S)  # every broker can answer, and the next one may be faster
        for start in range(0, max(1, len(asked)), NAMES_MAX):
            some = asked[start : start + NAMES_MAX]
            request = pb.MetadataRequest(topics=some, all=every, fresh=fresh)
            reply = await self.ask(request, timeout_s=timeout_s, attempt_s=attempt_s)
            self.update(routing.merge(self.view, reply, some))
            # A topic that is gone is no longer asked for: the next use of its name looks it up.
            self._names.difference_update(set(some) - self.view.topics.keys())
        self._refreshed_s = self.clock.monotonic()
        return self.view

    async def topic(self, name: str, timeout_s: float, *, create: bool = False) -> Topic:
        """Return a topic, looked up if the view lacks it. Raises UnknownTopic if no broker that answers knows it.

        With `create`, the brokers make a topic that does not exist, if their settings allow that.
        """
        known = self.view.topics.get(name)
        if known is None:
            left = self.countdown(timeout_s)
            try:
                known = await self._look_up(name, timeout_s)
            except UnknownTopic as unknown:
                if not create:
                    raise
                known = await self._create(name, left(), unknown)
        self._names.add(name)
        return known

    async def _create(self, name: str, timeout_s: float, unknown: UnknownTopic) -> Topic:
        """Have a broker make the topic. Raises `unknown` if its settings do not allow that, or why it failed."""
        request = pb.MetadataRequest(topics=[name], create_missing=True)
        reply = await self.ask(request, timeout_s=timeout_s)
        self.update(routing.merge(self.view, reply, [name]))
        known = self.view.topics.get(name)
        if known is None:
            refused = next((read_error(topic.error) for topic in reply.topics), unknown)
            raise unknown if isinstance(refused, UnknownTopic) else refused
        return known

    async def _look_up(self, name: str, timeout_s: float) -> Topic:
        deadline_s = self.clock.monotonic() + timeout_s
        view = await self.refresh([name], timeout_s=timeout_s)
        if name not in view.topics:
            # The broker that answered may lag behind its peers, and lack a new topic: ask all of them.
            left_s = max(0.001, min(self.attempt_s, deadline_s - self.clock.monotonic()))
            request = pb.MetadataRequest(topics=[name])
            asked = [self.ask_broker(a, request, left_s) for a in self.addresses()]
            for reply in await asyncio.gather(*asked, return_exceptions=True):
                if not isinstance(reply, BaseException):
                    self.update(routing.merge(self.view, reply, [name]))
        known = self.view.topics.get(name)
        if known is None:
            left_s = max(0.0, min(self.attempt_s, deadline_s - self.clock.monotonic()))
            raise await self.unknown_topic(name, left_s)
        return known

    async def unknown_topic(self, name: str, timeout_s: float) -> UnknownTopic | Denied:
        """Return the error for a topic that no broker shows: it does not exist, or this client may not describe it. The
        hint names a topic with a similar name, if there is one and a broker says so within `timeout_s`."""
        try:
            reply = await self.ask(pb.MetadataRequest(all=True, topics=[name]), timeout_s=max(0.001, timeout_s))
        except TinymqError as error:
            LOG.debug("no list of topics: %s", error)
            return UnknownTopic(f"there is no topic {name!r}")
        refused = (read_error(topic.error) for topic in reply.topics if topic.HasField("error"))
        denial = next((each for each in refused if isinstance(each, Denied)), None)
        if denial is not None:
            return denial
        near = difflib.get_close_matches(name, [topic.name for topic in reply.topics], 1)
        hint = f"did you mean {near[0]!r}? Else create it: tinymq topic create {name}" if near else None
        return UnknownTopic(f"there is no topic {name!r}", hint=hint)

    async def still_there(self, name: str, topic_id: bytes, timeout_s: float, partition: int | None = None) -> bool:
        """Does the topic still exist, with the same id and with this partition? Asks the brokers."""
        left = self.countdown(timeout_s)
        try:
            await self.refresh([name], timeout_s=timeout_s)
            known = self.view.topics.get(name) or await self._look_up(name, left())
            # A broker that lags may have brought a deleted topic back into the view. It must leave again.
            self._names.add(name)
            if partition is not None and known.topic_id == topic_id and known.partition(partition) is None:
                # The broker that answered may lag, and lack a new partition: the registry has the last word.
                view = await self.refresh([name], timeout_s=left(), fresh=True)
                known = view.topics.get(name, known)
        except UnknownTopic:
            return False
        return known.topic_id == topic_id and (partition is None or known.partition(partition) is not None)

    async def _refresh_in_background(self) -> None:
        gap_s = self._refreshed_s + REFRESH_GAP_S - self.clock.monotonic()
        if gap_s > 0:
            await self.clock.sleep(gap_s)
        try:
            await self.refresh(timeout_s=self.attempt_s)
        except TinymqError as error:
            LOG.debug("metadata refresh failed: %s", error)

    async def _watch(self) -> None:
        """Look for silent produce streams, and for a view that is too old, until the client is closed."""
        while not self.closed:
            await self.clock.sleep(WATCH_S)
            now_s = self.clock.monotonic()
            for address, silent_s in self.connections.look_for_silence():
                self.health.suspect(address, silent_s, now_s)
                self.refresh_soon()  # another broker may lead by now; the silent one is asked last
            if self._names and now_s - self._refreshed_s > self.config.metadata_max_age_ms / 1000:
                self.refresh_soon()
