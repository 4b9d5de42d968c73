"""AsyncAdmin: what an application can read and change of a cluster, except records. Answers are frozen values.

A method here checks its arguments, and makes one call of a part: a module beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tinymq.client.admin import feature_level, holds, scans
from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.admin.channels import Channels, PartitionSize
from tinymq.client.admin.cluster_status import ClusterStatus, TopicDescription
from tinymq.client.admin.dead_letters import DeadLetterCalls, RecordStory, Redriven
from tinymq.client.admin.feature_level import FeatureLevel
from tinymq.client.admin.groups import GroupCalls, GroupCursor, GroupDescription, GroupMember
from tinymq.client.admin.holds import ENOUGH, AsyncHold, HoldDescription, Lease
from tinymq.client.admin.leadership_transfer import transfer_leader
from tinymq.client.admin.partition_offsets import PartitionOffsets, find_place
from tinymq.client.admin.scans import ScanDescription, ScanSummary
from tinymq.client.admin.schedule import AsyncSchedule
from tinymq.client.admin.topics import Topics
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Broker, Partition
from tinymq.client.common import argument_checks as checks
from tinymq.client.common.argument_checks import check_partition, check_topic
from tinymq.client.common.start_positions import OffsetLike, Place, read_offset
from tinymq.client.consume.cursors import ChannelDescription, ConsumerDescription
from tinymq.proto import tinymq_pb2 as pb

LEASE_S = 60.0


class AsyncAdmin:
    """Topics, channels, groups, holds and the state of the cluster. Each `timeout` is in seconds; request_timeout_ms if
    not given."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers = BrokerCalls(cluster)
        self._topics = Topics(cluster, self._brokers)
        self._channels = Channels(cluster)
        self._groups = GroupCalls(cluster, self._brokers)
        self._letters = DeadLetterCalls(cluster)

    # ---- topics and partitions -----------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, *,
        settings: Mapping[str, object] | None = None, exist_ok: bool = False, timeout: float | None = None,
    ) -> TopicDescription:  # fmt: skip
        """Create a topic, and wait until its partitions have leaders. `exist_ok`: describe one that exists as it is.

        `replication_factor`: by default 3, or the number of brokers if there are fewer. The default needs as many
        registered brokers as the metadata has voters, or 3. Until then the call waits; at its deadline it raises
        NotReady, which names the missing brokers. An explicit number is used as given.

        `settings`: by name, such as {"retention_ms": 86_400_000, "max_bytes": None}; docs/topics.md has them all.
        Raises InvalidName, TopicExists, InvalidRequest (too few brokers), InvalidConfig (settings), OutcomeUnknown.
        """
        timeout_s = self._timeout_s(timeout)
        return await self._topics.create(name, partitions, replication_factor, settings or {}, timeout_s, exist_ok)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and its records. Raises UnknownTopic, OutcomeUnknown."""
        await self._topics.delete(name, self._timeout_s(timeout))

    async def alter_topic(
        self, name: str, settings: Mapping[str, object], *, timeout: float | None = None
    ) -> TopicDescription:
        """Change settings of a topic, all of these or none. Settings that are not named stay as they are.

        Brokers apply it when they hear of it, within moments. Raises UnknownTopic, InvalidConfig, OutcomeUnknown.
        """
        return await self._topics.alter(name, settings, self._timeout_s(timeout))

    async def add_partition(self, topic: str, *, timeout: float | None = None) -> Partition:
        """Add a partition, with a number that the topic never had before, and wait until it has a leader.

        From then on keys may belong to other partitions than before: see docs/topics.md. Raises UnknownTopic,
        InvalidRequest (too few brokers, a bound is reached), OutcomeUnknown.
        """
        return await self._topics.add_partition(topic, self._timeout_s(timeout))

    async def delete_partition(self, topic: str, partition: int, *, timeout: float | None = None) -> None:
        """Delete a partition and its records. Its number is never used again.

        From then on keys may belong to other partitions than before. Raises UnknownTopic, UnknownPartition,
        InvalidRequest (it is the topic's last partition), OutcomeUnknown.
        """
        await self._topics.delete_partition(topic, partition, self._timeout_s(timeout))

    async def transfer_leader(
        self, topic: str, partition: int, to: int | None = None, *, timeout: float | None = None
    ) -> int:
        """Make another broker lead a partition, and return the id of the new leader.

        `to` names the broker; None chooses one that can lead at once, the preferred one first. The leadership stays
        there: it returns to the preferred broker only after that broker failed or restarted.

        Raises UnknownTopic, UnknownPartition, InvalidRequest (`to` holds no replica), NotReady (it is not alive, not
        listed or catching up), DeadlineExceeded (the leader is the same as before), OutcomeUnknown.
        """
        check_topic(topic)
        checks.check_count("partition", partition, 0)
        if to is not None:
            checks.check_count("to", to, 1)
        return await transfer_leader(self._cluster, topic, partition, to or 0, self._timeout_s(timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicDescription]:
        """All topics, by name, as of a moment during this call."""
        return await self._topics.describe_all(self._timeout_s(timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """One topic, as of a moment during this call. Raises UnknownTopic."""
        return await self._topics.describe(name, self._timeout_s(timeout))

    async def offsets(
        self, name: str, *, partial: bool = False, timeout: float | None = None
    ) -> dict[int, PartitionOffsets]:
        """Where every partition begins and ends.

        Raises UnknownTopic; DeadlineExceeded when no replica of a partition answers: `partial` leaves that one out."""
        answers = await find_place(self._cluster, name, "latest", self._timeout_s(timeout), partial=partial)
        return {p: PartitionOffsets(a.log_start, a.high_watermark) for p, a in answers.items()}

    async def find_offsets(self, name: str, place: Place, *, timeout: float | None = None) -> dict[int, int]:
        """The offset of a place ("earliest", "latest", a datetime) in every partition. Raises UnknownTopic."""
        answers = await find_place(self._cluster, name, place, self._timeout_s(timeout))
        return {p: a.offset for p, a in answers.items()}

    async def kept_sizes(
        self, topic: str, partitions: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, PartitionSize]:
        """How much each of these partitions keeps, as its leader counts it.

        A partition whose leader does not answer in time is left out. Raises UnknownTopic, UnknownPartition.
        """
        numbers = [check_partition(number) for number in partitions]
        return await self._channels.sizes(check_topic(topic), numbers, self._timeout_s(timeout))

    async def trim(self, topic: str, partition: int, before: Place, *, timeout: float | None = None) -> int:
        """Remove for good the records before an Offset, or before the first record at or after a datetime.

        Returns the log start after that. Raises OffsetOutOfRange beyond the end; Held when a hold keeps some of them.
        """
        return await self._channels.trim(topic, partition, before, self._timeout_s(timeout))

    # ---- the brokers ---------------------------------------------------------------------------------

    async def brokers(self, *, timeout: float | None = None) -> list[Broker]:
        """The brokers that the registry knows now, by id."""
        view = await self._cluster.refresh(timeout_s=self._timeout_s(timeout))
        return sorted(view.brokers.values(), key=lambda broker: broker.broker_id)

    async def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """The state of every broker, as it describes itself; also of those that do not answer or are not registered."""
        return await self._brokers.status(self._timeout_s(timeout))

    async def feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """Return the cluster's feature level, and which brokers keep it there: docs/operations.md."""
        return await self._feature_level(pb.FeatureLevelRequest(), timeout)

    async def hold_feature_level(self, level: int = 0, *, timeout: float | None = None) -> FeatureLevel:
        """Make every broker that answers announce at most this level (0: the present one), so that the cluster's level
        does not rise. One broker that does is enough. The hold survives restarts, up to `release_feature_level`.

        Raises InvalidRequest (the level is below the present one, or above what a broker knows), UnsupportedVersion.
        """
        hold = pb.FeatureLevelRequest(action=pb.FeatureLevelRequest.HOLD, level=level)
        return await self._feature_level(hold, timeout)

    async def release_feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """End the hold on every broker that answers: the level rises once all members announce a higher one."""
        return await self._feature_level(pb.FeatureLevelRequest(action=pb.FeatureLevelRequest.RELEASE), timeout)

    async def describe_scan(self, scan_id: str, *, timeout: float | None = None) -> ScanDescription:
        """Which brokers have sent what to a scan (see Client.scan), as each broker counts it.

        A broker remembers the latest 1,000 scans until it stops. Raises InvalidName, BrokerUnreachable.
        """
        request = pb.DescribeScanRequest(scan_id=checks.check_scan(scan_id))
        return scans.describe(scan_id, await self._brokers.each(request, self._timeout_s(timeout)))

    async def list_scans(self, *, timeout: float | None = None) -> list[ScanSummary]:
        """The scans that the brokers remember, the latest first. Raises BrokerUnreachable."""
        return scans.summarise(await self._brokers.each(pb.ListScansRequest(), self._timeout_s(timeout)))

    # ---- channels ------------------------------------------------------------------------------------

    async def list_channels(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[ChannelDescription]:
        """The channels of a topic, or of one of its partitions, by partition and name, as the leaders have them."""
        return await self._channels.describe(topic, partition, self._timeout_s(timeout))

    async def seek_channel(
        self, topic: str, partition: int, channel: str, to: Place, *, unless_read: bool = False, make: bool = False,
        timeout: float | None = None,
    ) -> int:  # fmt: skip
        """Move a channel to an Offset, "earliest", "latest" or a datetime, and return its position after that.

        The channel's consumer is Fenced at its next commit; with `unless_read` the call itself is, while one is on
        record. With `make` a missing channel begins at `to`. Raises UnknownChannel, OffsetOutOfRange, OutcomeUnknown.
        """
        timeout_s = self._timeout_s(timeout)
        return await self._channels.seek(topic, partition, channel, to, timeout_s, unless_read=unless_read, make=make)

    async def delete_channel(self, topic: str, partition: int, channel: str, *, timeout: float | None = None) -> None:
        """Delete a channel of one partition, with its cursor. Its consumer gets an error. Raises UnknownChannel."""
        await self._channels.delete(topic, partition, channel, self._timeout_s(timeout))

    async def get_consumer(
        self, topic: str, partition: int, channel: str, *, timeout: float | None = None
    ) -> ConsumerDescription | None:
        """The consumer on record for a channel of a partition, or None. The consumer may have died since."""
        return await self._channels.get_consumer(topic, partition, channel, self._timeout_s(timeout))

    async def unset_consumer(
        self, topic: str, partition: int, channel: str, epoch: int = 0, *, timeout: float | None = None
    ) -> None:
        """Remove the consumer on record for a channel; with an `epoch`, only that one. One that reads goes on."""
        checks.check_count("epoch", epoch, 0)
        await self._channels.unset_consumer(topic, partition, channel, epoch, self._timeout_s(timeout))

    # ---- groups --------------------------------------------------------------------------------------

    async def create_group(
        self, name: str, topics: str | Sequence[str], *, kind: str = "stream", start: Place = "earliest",
        settings: Mapping[str, object] | None = None, exist_ok: bool = False, timeout: float | None = None,
    ) -> GroupDescription:  # fmt: skip
        """Make a consumer group, of the kind "stream" or "queue", and wait until it has a cursor in every partition.

        `topics`: names, and patterns such as "orders-*". `start`: "earliest", "latest" or a datetime. With `exist_ok`
        a group of that name and kind is as good. Raises UnknownTopic, AlreadyExists, WrongKind, InvalidConfig.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        return await self._groups.create(
            name, names, kind, start, settings or {}, exist_ok=exist_ok, timeout_s=self._timeout_s(timeout)
        )

    async def alter_group(
        self, name: str, settings: Mapping[str, object], *, dry_run: bool = False, timeout: float | None = None
    ) -> GroupDescription:
        """Change settings of a group, all of these or none. `dry_run`: only say what the group would be.

        What workers have agreed on for the records that they hold, such as `lease_ms`, changes only while no record is
        leased. Raises UnknownGroup, InvalidConfig, OutcomeUnknown.
        """
        return await self._groups.alter(name, settings, self._timeout_s(timeout), dry_run=dry_run)

    async def pause_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """Have a queue group's workers get no more records, until `resume_group`. What they hold, they may settle.

        Raises UnknownGroup, WrongKind (of a stream group), OutcomeUnknown.
        """
        return await self._groups.alter(name, {}, self._timeout_s(timeout), paused=True)

    async def resume_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """End the pause of a queue group. Raises as `pause_group`."""
        return await self._groups.alter(name, {}, self._timeout_s(timeout), paused=False)

    async def purge_group(self, name: str, *, dry_run: bool = False, timeout: float | None = None) -> int:
        """Settle all records of a queue group that are there now, without delivering them; what workers hold is
        LeaseLost. Returns how many were not settled just before. Raises UnknownGroup, WrongKind, OutcomeUnknown."""
        return await self._groups.purge(name, self._timeout_s(timeout), dry_run=dry_run)

    async def delete_group(self, name: str, *, timeout: float | None = None) -> int:
        """Delete a group with its cursors. Its members get an error. Raises UnknownGroup."""
        return await self._groups.delete(name, self._timeout_s(timeout))

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupDescription]:
        """All consumer groups, by name."""
        return await self._groups.list_all(self._timeout_s(timeout))

    async def describe_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """One consumer group. Raises UnknownGroup."""
        return await self._groups.describe(name, self._timeout_s(timeout))

    async def group_lag(self, name: str, *, timeout: float | None = None) -> list[GroupCursor]:
        """The position and the lag of a group in each partition, as the leaders have them. Raises UnknownGroup."""
        return await self._groups.cursors(name, self._timeout_s(timeout))

    async def group_members(self, name: str, *, timeout: float | None = None) -> list[GroupMember]:
        """The members of a stream group, and which partitions each has. Raises UnknownGroup, WrongKind."""
        return await self._groups.members(name, self._timeout_s(timeout))

    async def seek_group(
        self, name: str, to: Place, *, topic: str | None = None, partitions: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[GroupCursor]:  # fmt: skip
        """Move a group to an Offset, "earliest", "latest" or a datetime, in all of its partitions or in some.

        Its members read on from there. Returns the cursors after that. Raises UnknownGroup, OffsetOutOfRange.
        """
        return await self._groups.seek(name, to, topic, partitions, self._timeout_s(timeout))

    async def why(self, topic: str, partition: int, offset: int, *, timeout: float | None = None) -> RecordStory:
        """What became of a record in each group and channel. Raises OffsetOutOfRange for what is not there yet."""
        return (await self._letters.why(topic, partition, offset, 1, self._timeout_s(timeout)))[0]

    async def stories(
        self, topic: str, partition: int, offset: int, count: int, *, timeout: float | None = None
    ) -> list[RecordStory]:
        """As `why`, for up to `count` records (1 to 1,000) from an offset on."""
        return await self._letters.why(topic, partition, offset, count, self._timeout_s(timeout))

    async def redrive(
        self, topic: str, partition: int, offset: int, *, run: bytes = b"", timeout: float | None = None
    ) -> Redriven:
        """Send a dead letter back to its source, and settle it. The same `run`, 16 bytes, sends it once."""
        return await self._letters.redrive(topic, partition, offset, run, self._timeout_s(timeout))

    async def purge_dead_letters(self, topic: str, partition: int, before: int, *, timeout: float | None = None) -> int:
        """Settle the dead letters below an offset without sending them back; returns how many that changed."""
        return await self._letters.purge(topic, partition, before, self._timeout_s(timeout))

    # ---- delayed records -----------------------------------------------------------------------------

    def scheduled(self, topic: str, partition: int | None = None, *, timeout: float | None = None) -> AsyncSchedule:
        """The delayed records of a topic, or of a partition, that are not delivered yet: iterate over it. See
        AsyncSchedule. `timeout` is of each page."""
        return AsyncSchedule(self._cluster, topic, partition, self._timeout_s(timeout))

    # ---- holds ---------------------------------------------------------------------------------------

    def hold(self, topic: str, partition: int, offset: OffsetLike, *, lease: float = LEASE_S) -> AsyncHold:
        """Keep the records from `offset` on while an `async with` block runs, despite retention. See AsyncHold."""
        check_topic(topic)
        return AsyncHold(self._cluster, topic, check_partition(partition), offset, lease)

    async def list_holds(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[HoldDescription]:
        """The holds that keep records of a topic, or of one of its partitions: by partition and offset, as the leaders
        have them. Holds that ran out are left out."""
        return await self._channels.holds(topic, partition, self._timeout_s(timeout))

    async def make_hold(
        self, topic: str, partition: int, offset: OffsetLike, *, lease: float = LEASE_S,
        hold_id: bytes | None = None, timeout: float | None = None,
    ) -> HoldDescription:  # fmt: skip
        """Keep the records from `offset` on for `lease` seconds, 1 to 3600. The `hold_id` of a hold renews that one.

        The client does not renew this hold by itself: `hold` does. Raises OffsetOutOfRange, QuotaExceeded.
        """
        check_topic(topic)
        hold_id = self._cluster.rng.randbytes(holds.HOLD_ID_BYTES) if hold_id is None else holds.check_hold_id(hold_id)
        first, lease_s, number = read_offset(offset), holds.check_lease(lease), check_partition(partition)
        await holds.hold_once(self._cluster, topic, number, first, Lease(hold_id, lease_s), self._timeout_s(timeout))
        return HoldDescription(topic, number, hold_id, first, lease_s)

    async def hold_many(
        self, topic: str, ranges: Mapping[int, int], *, hold_id: bytes, lease: float = LEASE_S,
        enough: float = ENOUGH, partial: bool = False, light: bool = False, timeout: float | None = None,
    ) -> dict[int, int]:  # fmt: skip
        """Keep, in each partition of `ranges`, the records from its offset on, and return each partition's log start.

        All holds have one `hold_id` of 16 bytes, and last for `lease` seconds, 1 to 3600. Another call with the same id
        renews and moves them. A lease of 0 releases them. A hold that keeps as much already, and has the part `enough`
        of its lease left (two thirds by default), stays as it is; with 0 every hold is renewed. Each leader gets one
        request, all of them at the same time.

        Raises, after all other partitions were held: OffsetOutOfRange, QuotaExceeded (detail: partition);
        DeadlineExceeded, OutcomeUnknown. Holds that were made nevertheless end with their lease, or by a release. With
        `partial`, only OffsetOutOfRange is raised; other partitions that could not be held are logged and left out.

        `light`: the leader keeps the hold in memory and writes nothing. A light hold delays retention, but refuses no
        trim and no producer. A new leader does not know the hold until it is renewed there. A reader of records that
        were removed in spite of the hold gets OffsetOutOfRange.
        """
        offsets = holds.read_ranges(ranges)
        lease_s = 0.0 if lease == 0 else holds.check_lease(lease)
        lease_request = Lease(holds.check_hold_id(hold_id), lease_s, enough, light)
        name, timeout_s = check_topic(topic), self._timeout_s(timeout)
        return await holds.hold_many(self._cluster, name, offsets, lease_request, timeout_s, partial=partial)

    async def release_hold(self, topic: str, partition: int, hold_id: bytes, *, timeout: float | None = None) -> None:
        """End a hold, whichever client made it: its records may be removed from now on. A missing hold is no error."""
        released = Lease(holds.check_hold_id(hold_id), 0.0)
        number, timeout_s = check_partition(partition), self._timeout_s(timeout)
        await holds.hold_once(self._cluster, check_topic(topic), number, 0, released, timeout_s)

    # ---- of its parts --------------------------------------------------------------------------------

    def _timeout_s(self, timeout: float | None) -> float:
        checks.check_wait(timeout, least_s=checks.WAIT_S_MIN)
        return self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout

    async def _feature_level(self, request: pb.FeatureLevelRequest, timeout: float | None) -> FeatureLevel:
        return feature_level.read(await self._brokers.each(request, self._timeout_s(timeout)))
