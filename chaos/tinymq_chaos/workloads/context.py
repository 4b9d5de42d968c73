"""The context of a workload, and how a call's end is recorded. No workload is here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tinymq.base.clock import Clock
from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.client import AsyncClient, TopicDescription
from tinymq_chaos.history import Call, History, topic_key

CALL_S = 4.0  # deadline of a call, by default


class Caller(Protocol):
    """A caller without tinymq's client: unary calls by their paths, as any gRPC client makes them."""

    async def ask(self, path: str, request: Any, timeout_s: float) -> Any:
        """Return the answer of any broker to `path`, such as "tinymq.v1.QueueService/ConsumeMessage".

        Raises the error of the call's status, BrokerUnreachable if the request never left, OutcomeUnknown if its
        outcome is unknown.
        """
        ...


class Context(Protocol):
    """The interface of a workload to its run.

    An exception of the workload fails the run; errors of its calls go into the history.
    """

    @property
    def name(self) -> str:
        """The workload's name, with which the names of its processes, topics and records begin."""
        ...

    @property
    def pace(self) -> float:
        """Factor for the pauses of the workload."""
        ...

    @property
    def rng(self) -> random.Random: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def history(self) -> History: ...
    @property
    def stop(self) -> asyncio.Event:
        """When set: end all calls, read to the end, and return. All faults are over by then."""
        ...

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        """Create a topic before faults begin, and return its name.

        `replicas`: of each partition; None: the usual number.
        """
        ...

    def watch_leader(self, topic: str, partition: int) -> None:
        """Let faults that strike a leader strike this one, too, as they do those of the topics above."""
        ...

    def client(self, **settings: Any) -> AsyncClient:
        """Return a new client; the runner closes it."""
        ...

    def caller(self) -> Caller:
        """Return a new caller without tinymq's client."""
        ...


Workload = Callable[[Context], Awaitable[None]]


@contextmanager
def recorded(call: Call) -> Iterator[Call]:
    """End `call` with the error that the block raises. Otherwise the block ends the call."""
    try:
        yield call
    except TinymqError as error:
        fail(call, error)
    except BaseException:
        call.unknown("cancelled")
        raise


def fail(call: Call, error: TinymqError) -> None:
    if isinstance(error, OutcomeUnknown):
        call.unknown(error.code)
    else:
        call.failed(error.code)


def begin(context: Context, process: str, kind: str, within_s: float = CALL_S, **args: Any) -> Call:
    return context.history.invoke(process, kind, context.history.now() + within_s, **args)


@contextmanager
def recording(context: Context, process: str, kind: str, within_s: float = CALL_S, **args: Any) -> Iterator[Call]:
    """Begin a call, which the block ends, by its result or by its error."""
    with recorded(begin(context, process, kind, within_s, **args)) as call:
        yield call


async def pause(context: Context, least_s: float, most_s: float) -> None:
    """Pause for a random time; return at once when the workload has to stop."""
    if not context.stop.is_set():
        await context.clock.sleep(context.pace * context.rng.uniform(least_s, most_s))


async def described(context: Context, client: AsyncClient, name: str) -> TopicDescription:
    """Return an existing topic as soon as a broker answers: faults may have begun."""
    while True:
        try:
            return await client.admin.describe_topic(name)
        except TinymqError:
            await context.clock.sleep(0.1)


async def key_of(context: Context, client: AsyncClient, name: str) -> str:
    """Return an existing topic's name in histories."""
    return topic_key(name, (await described(context, client, name)).topic_id)
