"""A broker's own part in forming its cluster: what it is before, and what it accepts to become. Once, for good.

It is formed by `tinymq cluster init`, with the brokers that are listed from the first entry on, or joins a cluster
that is formed already (join.py): its first entry lists another data folder for this broker, which was lost.

The metadata group's first entry is kept in a file of its own, `metadata-first-entry`, synced before the cluster id
that makes it count: a crash between the two leaves a broker unformed, and forming it again completes it. The file is
the same on every broker. One that no first entry lists joins, too, and keeps beside it where the voters are, `voters`,
one `id@host:port` per line: its configuration does not say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from tinymq.base.config import format_address, parse_peer
from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest, WrongBroker, WrongCluster
from tinymq.base.types import METADATA_GROUP, GroupId, PeerAddress
from tinymq.format.entry import Entry, Kind, parse_entry
from tinymq.log.broker_files.identity import Identity
from tinymq.log.files.files import Files
from tinymq.log.files.runner import Runner
from tinymq.raft.net.transport import Invitation
from tinymq.raft.rules.membership import Membership, parse_membership

FIRST_ENTRY_FILE = "metadata-first-entry"
VOTERS_FILE = "voters"
_NEW = ".new"
_TAKEN = "give a new broker a broker_id of its own; a voter is started with `voters`, not with `join`"
_MEND = f"copy {FIRST_ENTRY_FILE} from the data folder of another broker of this cluster: it is the same on all"


class FormationStore(Protocol):
    """What forming asks of the data folder (tinymq.log.Store)."""

    @property
    def identity(self) -> Identity: ...
    def list_groups(self) -> Sequence[GroupId]: ...
    async def bind_cluster(self, cluster_id: bytes) -> None: ...


class Formation:
    """Unformed until `form` has returned, or `load` found what an earlier process formed."""

    def __init__(
        self, broker_id: int, voters: Sequence[int], folder: FormationStore, files: Files, runner: Runner
    ) -> None:
        self.broker_id = broker_id
        self.first_entry: Entry | None = None  # invariant: set if and only if formed
        self.on_formed: Callable[[Entry], None] | None = None
        self.known_voters: tuple[PeerAddress, ...] = ()  # as kept here; of a broker whose configuration names none
        self._voters = sorted(voters)
        self._folder = folder
        self._files = files
        self._runner = runner
        self._forming = asyncio.Lock()

    @property
    def cluster_id(self) -> bytes:
        """b"" until formed."""
        return self._folder.identity.cluster_id or b"" if self.first_entry is not None else b""

    @property
    def incarnation(self) -> bytes:
        return self._folder.identity.incarnation

    async def is_empty(self) -> bool:
        """No group is kept here."""
        return not await self._runner.run(self._folder.list_groups)

    async def load(self) -> Entry | None:
        """What an earlier process formed, if one did. Raises CorruptData."""
        if self._folder.identity.cluster_id is None:
            return None
        data = await self._runner.run(lambda: self._read(FIRST_ENTRY_FILE))
        if data is None:
            what = f"{FIRST_ENTRY_FILE} is missing from the data folder of a formed broker"
            raise CorruptData(what, hint=_MEND)
        try:
            first = parse_entry(data)
        except CorruptData as error:
            raise CorruptData(f"{FIRST_ENTRY_FILE} is damaged: {error.message}", hint=_MEND) from None
        voters = await self._runner.run(lambda: self._read(VOTERS_FILE))
        self.known_voters = _parse_voters(voters or b"")
        self.first_entry = first
        return first

    async def form(self, cluster_id: bytes, packed: bytes) -> None:
        """Join the cluster `cluster_id`, whose metadata group begins with `packed`. Doing it again is nothing. Once
        begun it is done, also when whoever asked for it is gone: half of it would be the first entry of one cluster
        under the id of another.

        Raises WrongCluster, WrongBroker, InvalidRequest, and then nothing has changed.
        """
        await _to_its_end(self._form(cluster_id, packed))

    async def _form(self, cluster_id: bytes, packed: bytes) -> None:
        async with self._forming:
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                return
            entry, membership = self._check_first(cluster_id, packed)
            if not membership.lists(self.broker_id, self._folder.identity.incarnation, 0):
                message = f"the first entry does not list broker {self.broker_id} with this data folder"
                raise WrongBroker(message, hint="a broker with a new folder joins a formed cluster by itself")
            await self._become(cluster_id, entry)

    async def join(self, cluster_id: bytes, packed: bytes) -> None:
        """As `form`, with this data folder or, in its place, an earlier one of this broker listed. Such a broker has
        no vote in any group until the group's CONFIG lists it. Raises as `form`."""
        await _to_its_end(self._join(cluster_id, packed))

    async def _join(self, cluster_id: bytes, packed: bytes) -> None:
        async with self._forming:
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                return
            entry, _ = self._check_first(cluster_id, packed)
            await self._become(cluster_id, entry)

    async def observe(self, invitation: Invitation) -> None:
        """Join a cluster whose first entry does not list this broker, and keep where its voters are. Again: keep where
        they are now. Raises as `form`; a voter does not come in this way."""
        await _to_its_end(self._observe(invitation))

    async def _observe(self, invitation: Invitation) -> None:
        async with self._forming:
            cluster_id, packed, voters = invitation.cluster_id, invitation.first_entry, invitation.voters
            if self.first_entry is not None:
                self._check_same(cluster_id, packed)
                await self._keep(voters)
                return
            entry, membership = self._check_first(cluster_id, packed, voters)
            if membership.replica(self.broker_id) is not None:
                raise WrongBroker(f"broker {self.broker_id} is one of this cluster's voters", hint=_TAKEN)
            await self._keep(voters)
            await self._become(cluster_id, entry)

    async def _keep(self, voters: Sequence[PeerAddress]) -> None:
        if voters and tuple(voters) != self.known_voters:
            lines = [f"{v.broker_id}@{format_address(v.host, v.port)}\n" for v in voters]
            await self._runner.run(lambda: self._write(VOTERS_FILE, "".join(lines).encode()))
            self.known_voters = tuple(voters)

    async def _become(self, cluster_id: bytes, entry: Entry) -> None:
        await self._runner.run(lambda: self._write(FIRST_ENTRY_FILE, entry.head + entry.payload))
        await self._folder.bind_cluster(cluster_id)
        self.first_entry = entry
        if self.on_formed is not None:
            self.on_formed(entry)

    def _check_same(self, cluster_id: bytes, packed: bytes) -> None:
        assert self.first_entry is not None
        if cluster_id != self._folder.identity.cluster_id:
            raise WrongCluster(f"the data folder of broker {self.broker_id} belongs to another cluster")
        if packed != self.first_entry.head + self.first_entry.payload:
            raise WrongCluster(f"broker {self.broker_id} was formed with other voters")

    def _check_first(
        self, cluster_id: bytes, packed: bytes, observed: Sequence[PeerAddress] | None = None
    ) -> tuple[Entry, Membership]:
        """`observed`: the voters, as a broker is told that is none of them."""
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
        """None: there is no such file."""
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


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # maybe nobody asks for it any more
    await asyncio.shield(task)
