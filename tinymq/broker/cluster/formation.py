"""Stores which cluster this broker belongs to. A data directory joins one cluster, once and for good.

`tinymq cluster init` forms a cluster from the brokers that its first entry lists. A broker joins a cluster that exists
(join.py) if the first entry lists it with another data directory, which was lost, or does not list it at all.

The file `metadata-first-entry` has the first entry of the metadata group, and is the same on every broker. It is synced
before the cluster id that makes it count. After a crash between the two the broker belongs to no cluster, and forming
or joining again completes it. A broker that is not listed also keeps the addresses of the voters in the file `voters`,
one `id@host:port` per line, because its configuration does not name them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from tinymq.base.config import format_address, parse_peer
from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest, WrongBroker, WrongCluster
from tinymq.base.types import METADATA_GROUP, GroupId, PeerAddress
from tinymq.format.entry import Entry, Kind, parse_entry
from tinymq.log.broker_files.broker_identity import BrokerIdentity
from tinymq.log.files.files import Files
from tinymq.log.files.runner import Runner
from tinymq.raft.net.transport import Invitation
from tinymq.raft.rules.membership import Membership, parse_membership

FIRST_ENTRY_FILE = "metadata-first-entry"
VOTERS_FILE = "voters"
_NEW = ".new"
_TAKEN = "give a new broker a broker_id of its own; a voter is started with `voters`, not with `join`"
_MEND = f"copy {FIRST_ENTRY_FILE} from the data directory of another broker of this cluster: it is the same on all"


class FormationStore(Protocol):
    """The part of the data directory that forming uses (tinymq.log)."""

    @property
    def identity(self) -> BrokerIdentity: ...
    def list_groups(self) -> Sequence[GroupId]: ...
    async def bind_cluster(self, cluster_id: bytes) -> None: ...


class Formation:
    """The cluster of this broker: none, until `form`, `join` or `observe` has returned, or `load` has found one."""

    def __init__(
        self, broker_id: int, voters: Sequence[int], store: FormationStore, files: Files, runner: Runner
    ) -> None:
        self.broker_id = broker_id
        self.first_entry: Entry | None = None  # of the metadata group; None: this broker belongs to no cluster
        self.on_formed: Callable[[Entry], None] | None = None
        self.known_voters: tuple[PeerAddress, ...] = ()  # from the file `voters`
        self._voters = sorted(voters)
        self._store = store
        self._files = files
        self._runner = runner
        self._forming = asyncio.Lock()

    @property
    def cluster_id(self) -> bytes:
        """b"": this broker belongs to no cluster."""
        return self._store.identity.cluster_id or b"" if self.first_entry is not None else b""

    @property
    def incarnation(self) -> bytes:
        return self._store.identity.incarnation

    async def is_empty(self) -> bool:
        """Whether the data directory has no group."""
        return not await self._runner.run(self._store.list_groups)

    async def load(self) -> Entry | None:
        """Load the cluster that an earlier process of this broker joined, if any. Raises CorruptData."""
        if self._store.identity.cluster_id is None:
            return None
        data = await self._runner.run(lambda: self._read(FIRST_ENTRY_FILE))
        if data is None:
            message = f"{FIRST_ENTRY_FILE} is missing from the data directory of a formed broker"
            raise CorruptData(message, hint=_MEND)
        try:
            first = parse_entry(data)
        except CorruptData as error:
            raise CorruptData(f"{FIRST_ENTRY_FILE} is damaged: {error.message}", hint=_MEND) from None
        voters = await self._runner.run(lambda: self._read(VOTERS_FILE))
        self.known_voters = _parse_voters(voters or b"")
        self.first_entry = first
        return first

    async def form(self, cluster_id: bytes, packed: bytes) -> None:
        """Become a founding member of the cluster `cluster_id`, whose metadata group begins with `packed`.

        Repeating the same call does nothing. A call that has begun is completed even if its caller is cancelled:
        otherwise the first entry of one cluster could lie beside the id of another. Raises WrongCluster, WrongBroker,
        InvalidRequest, and then nothing has changed.
        """
        await _complete(self._form(cluster_id, packed))

    async def _form(self, cluster_id: bytes, packed: bytes) -> None:
        async with self._forming:
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                return
            entry, membership = self._check_first(cluster_id, packed)
            if not membership.lists(self.broker_id, self._store.identity.incarnation, 0):
                message = f"the first entry does not list broker {self.broker_id} with this data directory"
                raise WrongBroker(message, hint="a broker with a new data directory joins a formed cluster by itself")
            await self._become(cluster_id, entry)

    async def join(self, cluster_id: bytes, packed: bytes) -> None:
        """As `form`, for a first entry that may list an earlier data directory of this broker. Such a broker has no
        vote in any group until the group's CONFIG lists it. Raises as `form`."""
        await _complete(self._join(cluster_id, packed))

    async def _join(self, cluster_id: bytes, packed: bytes) -> None:
        async with self._forming:
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                return
            entry, _ = self._check_first(cluster_id, packed)
            await self._become(cluster_id, entry)

    async def observe(self, invitation: Invitation) -> None:
        """Join a cluster whose first entry does not list this broker, and store the addresses of its voters.

        A further call stores their present addresses. Raises as `form`; a voter cannot join this way.
        """
        await _complete(self._observe(invitation))

    async def _observe(self, invitation: Invitation) -> None:
        async with self._forming:
            cluster_id, packed, voters = invitation.cluster_id, invitation.first_entry, invitation.voters
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                await self._store_voters(voters)
                return
            entry, membership = self._check_first(cluster_id, packed, voters)
            if membership.replica(self.broker_id) is not None:
                raise WrongBroker(f"broker {self.broker_id} is one of this cluster's voters", hint=_TAKEN)
            await self._store_voters(voters)
            await self._become(cluster_id, entry)

    async def _store_voters(self, voters: Sequence[PeerAddress]) -> None:
        if voters and tuple(voters) != self.known_voters:
            lines = [f"{v.broker_id}@{format_address(v.host, v.port)}\n" for v in voters]
            await self._runner.run(lambda: self._write(VOTERS_FILE, "".join(lines).encode()))
            self.known_voters = tuple(voters)

    async def _become(self, cluster_id: bytes, entry: Entry) -> None:
        # In this order: the cluster id makes the first entry count, so that a crash in between can be repeated.
        await self._runner.run(lambda: self._write(FIRST_ENTRY_FILE, entry.head + entry.payload))
        await self._store.bind_cluster(cluster_id)
        self.first_entry = entry
        if self.on_formed is not None:
            self.on_formed(entry)

    def _check_same(self, cluster_id: bytes, packed: bytes) -> None:
        assert self.first_entry is not None
        if cluster_id != self._store.identity.cluster_id:
            raise WrongCluster(f"the data directory of broker {self.broker_id} belongs to another cluster")
        if packed != self.first_entry.head + self.first_entry.payload:
            raise WrongCluster(f"broker {self.broker_id} was formed with other voters")

    def _check_first(
        self, cluster_id: bytes, packed: bytes, observed: Sequence[PeerAddress] | None = None
    ) -> tuple[Entry, Membership]:
        """Check a first entry. `observed` are the voters, for a broker that is not one of them."""
        if len(cluster_id) != 16 or not any(cluster_id):
            raise InvalidRequest("a cluster id is 16 bytes, not all zero")
        try:
            entry = parse_entry(packed)
            membership = parse_membership(entry.payload)
        except CorruptData as error:
            raise InvalidRequest(f"not a first entry: {error.message}") from None
        header = entry.header
        if header.kind != Kind.CONFIG or (header.index, header.term, len(packed)) != (1, 0, entry.size):
            raise InvalidRequest("not the first entry of a group")
        if membership.group != METADATA_GROUP:
            raise InvalidRequest("not the first entry of the metadata group")
        if observed is None and membership.replica(self.broker_id) is None:
            raise WrongBroker(f"the first entry does not list broker {self.broker_id}")
        listed = sorted(r.broker_id for r in membership.replicas)
        voters = self._voters if observed is None else sorted(v.broker_id for v in observed)
        if listed != voters:
            raise InvalidRequest(f"the first entry lists brokers {listed}; this broker's voters are {voters}")
        return entry, membership

    def _read(self, name: str) -> bytes | None:
        """The content of a file; None: there is no such file."""
        try:
            file = self._files.open(name)
        except FileNotFoundError:
            return None
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _write(self, name: str, data: bytes) -> None:
        self._files.remove(name + _NEW)
        file = self._files.open(name + _NEW, create=True)
        try:
            file.write(0, [data])
            self._files.sync([file])
        finally:
            file.close()
        self._files.rename(name + _NEW, name)
        self._files.sync_directory("")


def _parse_voters(data: bytes) -> tuple[PeerAddress, ...]:
    try:
        return tuple(parse_peer(line) for line in data.decode().splitlines())
    except (InvalidConfig, UnicodeDecodeError) as error:
        hint = f"write one id@host:port per line for each broker that keeps the metadata into {VOTERS_FILE}"
        raise CorruptData(f"{VOTERS_FILE} is damaged: {error}", hint=hint) from None


async def _complete(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # retrieve the error: the caller may be gone
    await asyncio.shield(task)
