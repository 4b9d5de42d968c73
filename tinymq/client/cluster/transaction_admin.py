"""AsyncTransactionAdmin: what an application can read and change of transactions and half messages."""

from __future__ import annotations

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.half_descriptions import HalfAdmin, HalfMessageDescription
from tinymq.client.cluster.transaction_descriptions import (
    HungTransaction,
    TransactionAdmin,
    TransactionalIdDescription,
)
from tinymq.client.common import argument_checks as checks


class AsyncTransactionAdmin:
    """Transactions and half messages: a part of `mq.admin`. AsyncAdmin says what holds for every call, and what
    `timeout` means.

        admin = mq.admin
        async with mq.transaction("billing-3") as tx:
            await tx.send("orders", b"...")
            print((await admin.describe_transactional_id("billing-3")).transactions)
        await admin.abort_transaction("billing-3")  # of which none is open any more
        print([each.transactional_id for each in await admin.list_transactional_ids()])
        for each in await admin.list_hung_transactions():
            await admin.resolve_transaction(each.transaction, commit=False)

        half = await mq.half_message("orders", b"...", producer_group="checkout")
        print([each.name for each in await admin.list_half_messages("checkout")])
        print((await admin.describe_half_message(half.name)).checks)
        await admin.end_half_message(half.name, commit=False)
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._transactions = TransactionAdmin(cluster)
        self._halves = HalfAdmin(cluster)

    async def list_transactional_ids(self, *, timeout: float | None = None) -> list[TransactionalIdDescription]:
        """The transactional ids, by name, with their transactions that are not over.

        Ids whose coordinator has no leader are left out.
        """
        return await self._transactions.list_ids(self._timeout_s(timeout))

    async def describe_transactional_id(
        self, transactional_id: str, *, timeout: float | None = None
    ) -> TransactionalIdDescription:
        """One transactional id, with its transactions that are not over. Raises NotFound."""
        return await self._transactions.describe(transactional_id, self._timeout_s(timeout))

    async def abort_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Roll back the open transaction of a transactional id, whoever owns the id. The owner's next call raises
        TransactionAborted. Does nothing if none is open. Raises NotFound, OutcomeUnknown.
        """
        await self._transactions.abort(transactional_id, self._timeout_s(timeout))

    async def list_hung_transactions(self, *, timeout: float | None = None) -> list[HungTransaction]:
        """The transactions whose partitions have asked for their end in vain, by partition, as all brokers that answer
        know them."""
        return await self._transactions.list_hung(self._timeout_s(timeout))

    async def resolve_transaction(self, transaction: str, *, commit: bool, timeout: float | None = None) -> bool:
        """Decide about a hung `transaction` that is "unresolved": `commit` it, or roll it back. Returns whether all its
        partitions have carried that out; False: the time is up, and they follow. It cannot be undone. Raises NotFound,
        InvalidRequest (it is not lost, or was resolved otherwise before), OutcomeUnknown: resolve it again.
        """
        return await self._transactions.resolve(transaction, commit, self._timeout_s(timeout))

    async def list_half_messages(
        self, producer_group: str | None = None, *, timeout: float | None = None
    ) -> list[HalfMessageDescription]:
        """The half messages of `producer_group` that are not over, in the order in which they began; None: of all.

        Those whose coordinator has no leader are left out. Raises InvalidName.
        """
        return await self._halves.all(producer_group, self._timeout_s(timeout))

    async def describe_half_message(self, name: str, *, timeout: float | None = None) -> HalfMessageDescription:
        """The half message `name`, such as "1042-0-1", that is not over. Raises NotFound, InvalidRequest."""
        return await self._halves.describe(name, self._timeout_s(timeout))

    async def end_half_message(self, name: str, *, commit: bool, timeout: float | None = None) -> bool:
        """Decide about the half message `name` in the place of its sender: `commit` it, or roll it back. Returns
        whether its partition shows it. It cannot be undone. Raises NotFound, TransactionAborted or InvalidRequest (it
        was decided otherwise meanwhile), OutcomeUnknown: describe it again.
        """
        return await self._halves.end(name, commit, self._timeout_s(timeout))

    def _timeout_s(self, timeout: float | None) -> float:
        checks.check_wait(timeout, least_s=checks.WAIT_S_MIN)
        return self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout
