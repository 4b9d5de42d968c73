"""The transactional ids of one client. Each is registered at its first use, and kept for the life of the client."""

from __future__ import annotations

from typing import NamedTuple

from tinymq.base.errors import Fenced, InvalidRequest, TinymqError
from tinymq.base.types import check_transactional_id
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transaction_descriptions import TransactionAdmin, TransactionalIdDescription
from tinymq.client.cluster.transactional_id_calls import TransactionalIdCalls
from tinymq.client.common.traces import untraced
from tinymq.proto import tinymq_pb2 as pb

FENCED_HINT = "one program at a time uses a transactional id; to take it over again, make a new client"


class Begun(NamedTuple):
    """A transaction that has begun."""

    transaction: pb.TransactionRef
    coordinator: int  # the number of the partition of `__coordinator` that has the id
    writer: int = 0  # the number of this program in the transaction, where several write


class Owner:
    """A transactional id, with this client's registration and its open transaction."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.calls = TransactionalIdCalls(cluster, name)
        self._cluster = cluster
        self._registered: pb.RegisterOwnerReply | None = None
        self._fenced: Fenced | None = None
        self._open: Begun | None = None  # the transaction of this id that is open here
        self._beginning = False

    async def begin(self, lasts_ms: float, timeout_s: float) -> Begun:
        """Begin a transaction. The first one registers the id, which fences other programs that use it.

        Raises InvalidRequest (one is open here already), Fenced, Denied, QuotaExceeded, DeadlineExceeded,
        OutcomeUnknown: it may have begun, and the next one ends it.
        """
        if self._fenced is not None:
            raise untraced(self._fenced)
        if self._open is not None or self._beginning:
            raise InvalidRequest(
                f"a transaction of {self.name!r} is open already",
                hint="commit or roll it back first, or use another transactional id",
            )
        self._beginning = True
        try:
            left = self._cluster.countdown(timeout_s)
            if self._registered is None:
                self._registered = await self.calls.register(left())
            known = self._registered
            transaction = await self.calls.begin(known.producer_id, known.epoch, lasts_ms, left())
        except Fenced as error:
            raise self._note_fenced(error) from error
        finally:
            self._beginning = False
        self._open = Begun(transaction, known.coordinator)
        return self._open

    async def take(self, timeout_s: float) -> TransactionalIdDescription:
        """Register the id again, and return its state. This also ends the fencing of an owner that was fenced.

        Raises InvalidRequest (a transaction is open here), Fenced (another program registered at the same time),
        Denied, QuotaExceeded, DeadlineExceeded, OutcomeUnknown.
        """
        if self._open is not None or self._beginning:
            raise InvalidRequest(f"a transaction of {self.name!r} is open", hint="commit or roll it back first")
        self._beginning = True
        try:
            left = self._cluster.countdown(timeout_s)
            self._registered = taken = await self.calls.register(left())
            self._fenced = None
            found = await TransactionAdmin(self._cluster).describe(self.name, left())
        finally:
            self._beginning = False
        if (found.producer_id, found.epoch) != (taken.producer_id, taken.epoch):
            raise self._note_fenced(Fenced(f"another program has taken {self.name!r}"))
        return found

    def ended(self, begun: Begun, error: TinymqError | None) -> None:
        """Note that a transaction is over, and why. After Fenced, this client begins no further transaction of the
        id."""
        if self._open is begun:
            self._open = None
        if isinstance(error, Fenced):
            self._note_fenced(error)

    def _note_fenced(self, error: Fenced) -> Fenced:
        self._fenced = Fenced(error.message, hint=FENCED_HINT)
        return self._fenced


class Owners:
    """The transactional ids that one client has used."""

    def __init__(self) -> None:
        self._by_name: dict[str, Owner] = {}

    def owner(self, cluster: Cluster, name: str) -> Owner:
        """Return the owner of an id. Raises InvalidName, InvalidRequest."""
        if not isinstance(name, str):
            raise InvalidRequest(f"transactional_id={name!r:.300}", hint="pass a name as text, such as 'billing-1'")
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Owner(cluster, check_transactional_id(name))
        return found
