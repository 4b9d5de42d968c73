"""What a workload is given, and how it writes down how a call ended. No workload here."""

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

CALL_S = 4.0  # deadline of every call, if nothing else is said


class Caller(Protocol):
    """Who has no client of ours: unary calls, by their paths, as any gRPC client makes them."""

    async def ask(self, path: str, request: Any, timeout_s: float) -> Any:
        """The answer of any broker to `path`, such as "tinymq.v1.QueueService/ConsumeMessage".

        Raises the error that ended the call as a status; BrokerUnreachable when it never left, OutcomeUnknown when
        nobody knows.
        """
        ...


class Context(Protocol):
    """A workload's surroundings. What a workload raises fails the run; what calls end with goes to the history."""

    @property
    def name(self) -> str:
        """Of the workload; begins the names of its processes, topics and records."""
        ...

    @property
    def pace(self) -> float:
        """Pauses are so many times as long as a workload says."""
        ...

    @property
    def rng(self) -> random.Random: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def history(self) -> History: ...
    @property
    def stop(self) -> asyncio.Event:
        """Set: end what is under way, read to the end, and return. By then all faults are over."""
        ...

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        """Create a topic before faults begin, and return its name. `replicas`: of each partition; None: the usual
        number."""
        ...

    def client(self, **settings: Any) -> AsyncClient:
        """A new client, closed by the runner."""
        ...

    def caller(self) -> Caller:
        """Another one who calls brokers without a client."""
        ...


Workload = Callable[[Context], Awaitable[None]]


@contextmanager
def told(call: Call) -> Iterator[Call]:
    """Ends `call` by what the block raises; without that, the block does."""
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


async def pause(context: Context, least_s: float, most_s: float) -> None:
    """Some time between; at once when told to stop."""
    if not context.stop.is_set():
        await context.clock.sleep(context.pace * context.rng.uniform(least_s, most_s))


async def described(context: Context, client: AsyncClient, name: str) -> TopicDescription:
    """A topic that is there, as soon as somebody answers: faults may have begun."""
    while True:
        try:
            return await client.admin.describe_topic(name)
        except TinymqError:
            await context.clock.sleep(0.1)


async def key_of(context: Context, client: AsyncClient, name: str) -> str:
    """A topic that is there, as histories name it."""
    return topic_key(name, (await described(context, client, name)).topic_id)
