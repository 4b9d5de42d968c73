"""The objects that an AsyncClient has made and not closed yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidConfig, TinymqError
from tinymq.client.common.config import ClientConfig, check_token, default_client_id
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.scan import ScanCore
from tinymq.client.group.consumer import ConsumerCore
from tinymq.client.net.ports import Connector
from tinymq.client.net.token_sender import TokenSender
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.queue.queue import QueueCore
from tinymq.client.serve.serving import Handlers
from tinymq.client.transaction.checker import AsyncChecker
from tinymq.client.transaction.transaction import TransactionCore
from tinymq.client.work.worker import WorkerCore

LOG = logging.getLogger("tinymq.client")

Opened = (
    ProducerCore
    | ReaderCore
    | ScanCore
    | QueueCore
    | ConsumerCore
    | WorkerCore
    | TransactionCore
    | AsyncChecker
    | Handlers
)
# The client calls `leave` of these, not `close`: records handed out last do not count as handled.
LEAVING = (QueueCore, ConsumerCore, WorkerCore, TransactionCore)
T = TypeVar("T", bound=Opened)


class OpenedObjects:
    """The producers, readers, consumers, transactions and so on of one client, in the order in which they were made."""

    def __init__(self) -> None:
        self._opened: list[Opened] = []

    def keep(self, opened: T) -> T:
        """Add an object, forget those that have ended, and return the new one."""
        self._opened = [
            each for each in self._opened if not (each.ended if isinstance(each, ProducerCore) else each.closed)
        ]
        self._opened.append(opened)
        return opened

    async def close(self) -> TinymqError | None:
        """Close them all. Returns the first error, after the others are closed, too."""
        first: TinymqError | None = None
        opened, self._opened = self._opened, []
        for each in opened:
            try:
                await (each.leave() if isinstance(each, LEAVING) else each.close())
            except TinymqError as error:
                first = first or error
        return first

    def producers(self) -> list[ProducerCore]:
        """Return the producers that have not ended, those of queues included."""
        queues = [each.writer.own for each in self._opened if isinstance(each, QueueCore)]
        made = [each for each in self._opened if isinstance(each, ProducerCore)]
        return [each for each in (*made, *queues) if each is not None and not each.ended]


def broker_connector(config: ClientConfig, clock: Clock) -> Connector:
    """The connector to real brokers."""
    from tinymq.client.net.streams import BrokerConnector  # loads gRPC, which takes long
    from tinymq.net.client_tls import ClientTls, paths_of
    from tinymq.net.tls_files import TlsFiles

    token = TokenSender(check_token(config.token, with_environment=False), config.token_without_tls, config.token_file)
    tls = None
    if config.tls:
        tls = ClientTls(TlsFiles(paths_of(config.tls_dir, config.tls_ca), _report), config.tls_server_name)
    return BrokerConnector(config.limits, config.client_id or default_client_id(), clock, token, tls)


def _report(place: str, error: InvalidConfig | None) -> None:
    if error is not None:
        LOG.warning("certificates in %s: %s; the old ones stay in use", place, error.message)


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Make `call` on the loop, soon. Callable from any thread. Once the loop is closed nothing happens."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        loop.call_soon(call)
    elif not loop.is_closed():
        with contextlib.suppress(RuntimeError):  # the loop was closed in this moment
            loop.call_soon_threadsafe(call)
