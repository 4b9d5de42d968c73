"""AsyncClient: the client for programs with an event loop. Its core does the work (client_core.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Self, Unpack, overload

from tinymq.client.common.options import ClientOptions, TransactionOptions
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.facade.generated_async.client import AsyncClientCalls
from tinymq.client.facade.generated_async.partition_transaction import AsyncPartitionTransaction
from tinymq.client.facade.generated_async.transaction import AsyncTransaction
from tinymq.client.transaction.partition_transaction import PartitionTransactionCore
from tinymq.client.transaction.refusals import check_no_settings


class AsyncClient(AsyncClientCalls):
    """A connection to a tinymq cluster, for asyncio.

        async with AsyncClient("localhost:7070") as mq:
            await mq.send("orders", b"...")

    `servers`: "host:port,host:port" or a list; any one of them finds the others. `context` names a cluster of
    `tinymq context list` instead. Without both, the environment names the cluster: TINYMQ_SERVERS, or else
    TINYMQ_CONTEXT. Settings: see ClientConfig. Connects when first used. From then on the client belongs to
    the event loop that used it, and every call on another loop raises WrongEventLoop. Only a Delivery may be awaited on
    any loop. Raises InvalidConfig, NotFound (no such context), CorruptData (the file of contexts).
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        super().__init__(ClientCore(servers, context=context, **settings))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process: pass its servers, and make a client where it is used")

    @overload
    def transaction(self, transactional_id: str, **settings: Unpack[TransactionOptions]) -> AsyncTransaction: ...
    @overload
    def transaction(self) -> AsyncPartitionTransaction: ...
    def transaction(
        self, transactional_id: str | None = None, **settings: Unpack[TransactionOptions]
    ) -> AsyncTransaction | AsyncPartitionTransaction:
        """A transaction: its records become visible when it commits, all of them or none. Use it in `async with`.

        `transactional_id`: a name that this program uses alone. The first transaction of an id in this client fences
        the programs that used it before, and rolls back what they had open; the client keeps the id. One transaction of
        an id at a time. Settings: see TransactionConfig. docs/transactions.md tells the whole story.

        Without an id the records go to one partition, as one batch, and there are no settings. Raises InvalidRequest.
        """
        if transactional_id is None:
            check_no_settings(settings)
            made = PartitionTransactionCore(self._core.cluster(), self._core.shared_producer)
            return AsyncPartitionTransaction(made)
        return AsyncTransaction(self._core.transaction(transactional_id, **settings))

    @classmethod
    def _of(cls, core: ClientCore) -> Self:
        client = cls.__new__(cls)
        AsyncClientCalls.__init__(client, core)
        return client


def client_of(core: ClientCore) -> AsyncClient:
    """Return the client of a core that was made with a connector, a clock or a source of randomness of its own."""
    return AsyncClient._of(core)
