"""AsyncAdmin: what an application can read and change of a cluster, except records. Answers are frozen values.

A method here checks its arguments, and makes one call of a part: a module beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tinymq.client.admin import feature_level, holds, scans
from tinymq.client.admin.channels import Channels, PartitionSize
from tinymq.client.admin.cluster_status import ClusterStatus, TopicDescription
from tinymq.client.admin.feature_level import FeatureLevel
from tinymq.client.admin.group_admin import AsyncGroupAdmin
from tinymq.client.admin.holds import ENOUGH, AsyncHold, HoldDescription, HoldTerms
from tinymq.client.admin.partition_offsets import PartitionOffsets, find_place
from tinymq.client.admin.scans import ScanDescription, ScanSummary
from tinymq.client.admin.schedule import AsyncSchedule
from tinymq.client.admin.topics import Topics
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leadership_transfer import transfer_leader
from tinymq.client.cluster.routing import Broker, Partition
from tinymq.client.common import argument_checks as checks
from tinymq.client.common.argument_checks import check_partition, check_topic
from tinymq.client.common.start_positions import OffsetLike, Place, read_offset
from tinymq.client.consume.cursors import ChannelDescription, ConsumerDescription
from tinymq.proto import tinymq_pb2 as pb

LEASE_S = 60.0


class AsyncAdmin(AsyncGroupAdmin):
    """Topics, channels, holds and brokers, and what AsyncGroupAdmin and AsyncTransactionAdmin have. It is `mq.admin`.

    `timeout`: seconds, the deadline of a call with all its attempts; request_timeout_ms if not given. A change is on a
    majority of disks when the call returns, and takes effect once, however often the client had to ask. At its deadline
    a call raises DeadlineExceeded (nothing was changed) or OutcomeUnknown (it may still happen). Each may raise
    BrokerUnreachable, Unauthenticated and Denied as well.

        admin = mq.admin
        await admin.create_topic("jobs", partitions=2, settings={"retention_ms": 86_400_000}, exist_ok=True)
        await admin.alter_topic("jobs", {"max_bytes": 10_000_000, "retention_ms": None})
        await admin.create_topic("old")
        await admin.delete_topic("old")
        added = await admin.add_partition("jobs")
        await admin.delete_partition("jobs", added.partition)
        print([topic.name for topic in await admin.list_topics()], (await admin.describe_topic("jobs")).settings)
        print(await admin.offsets("jobs"), await admin.find_offsets("jobs", "latest"))
        print(await admin.kept_sizes("jobs", [0, 1]), await admin.trim("jobs", 0, "latest"))

    The brokers:

        admin = mq.admin
        print(await admin.brokers(), (await admin.cluster_status()).metadata_leader)
        try:
            print("led by", await admin.transfer_leader("jobs", 0))
        except TinymqError as error:  # such as NotReady: no other replica can lead
            print(error.code, error.hint)
        print((await admin.feature_level()).level)
        await admin.hold_feature_level()
        await admin.release_feature_level()
        print(await admin.list_scans(), (await admin.describe_scan("nightly")).bytes_by)

    Channels, holds, and delayed records:

        admin = mq.admin
        await admin.seek_channel("jobs", 0, "audit", "earliest", make=True)
        print(await admin.list_channels("jobs"), await admin.get_consumer("jobs", 0, "audit"))
        await admin.unset_consumer("jobs", 0, "audit")
        await admin.delete_channel("jobs", 0, "audit")
        kept = await admin.make_hold("jobs", 0, 0, lease=60.0)
        await admin.hold_many("jobs", {0: 0, 1: 0}, hold_id=kept.hold_id)
        print(await admin.list_holds("jobs"))
        await admin.release_hold("jobs", 0, kept.hold_id)
        async with admin.hold("jobs", 0, 0) as held:
            print(held.log_start)
        print([scheduled.deliver_at async for scheduled in admin.scheduled("jobs")])
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._topics = Topics(cluster, self._brokers)
        self._channels = Channels(cluster)

    # ---- topics and partitions -----------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, *,
        settings: Mapping[str, object] | None = None, exist_ok: bool = False, timeout: float | None = None,
    ) -> TopicDescription:  # fmt: skip
        """Create a topic, and wait until its partitions have leaders. `exist_ok`: if the topic exists, describe it and
        change nothing.

        `replication_factor`: by default 3, or the number of brokers if there are fewer. The default needs as many
        registered brokers as the metadata has voters, or 3. Until then the call waits; at its deadline it raises
        NotReady, which names the missing brokers. An explicit number is used as given.

        `settings`: by name, such as {"retention_ms": 86_400_000, "max_bytes": None}; docs/topics.md has them all.
        Raises InvalidName, TopicExists, InvalidRequest (too few brokers), InvalidConfig (settings), OutcomeUnknown.
        """
        timeout_s = self._timeout_s(timeout)
        return await self._topics.create(name, partitions, replication_factor, settings or {}, timeout_s, exist_ok)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic with its records, for good. Groups and channels lose their cursors in it.

        Raises UnknownTopic, OutcomeUnknown.
        """
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
        """Return all topics, by name, as of a moment during this call: what was acknowledged before it is included."""
        return await self._topics.describe_all(self._timeout_s(timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """Return one topic, as of a moment during this call. Raises UnknownTopic."""
        return await self._topics.describe(name, self._timeout_s(timeout))

    async def offsets(
        self, name: str, *, partial: bool = False, timeout: float | None = None
    ) -> dict[int, PartitionOffsets]:
        """Return, by partition, the log start and the offset behind the last committed record.

        The leaders answer, or else the replica that knows most: never above what was acknowledged. Raises UnknownTopic;
        DeadlineExceeded when no replica of a partition answers. With `partial`, such partitions are left out instead.
        """
        answers = await find_place(self._cluster, name, "latest", self._timeout_s(timeout), partial=partial)
        return {p: PartitionOffsets(a.log_start, a.high_watermark) for p, a in answers.items()}

    async def find_offsets(self, name: str, place: Place, *, timeout: float | None = None) -> dict[int, int]:
        """Return, by partition, the offset of a place: "earliest", "latest", or a datetime with a zone.

        A datetime is the first record with that timestamp or a later one, and the end if there is none. Raises
        UnknownTopic, InvalidRequest.
        """
        answers = await find_place(self._cluster, name, place, self._timeout_s(timeout))
        return {p: a.offset for p, a in answers.items()}

    async def kept_sizes(
        self, topic: str, partitions: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, PartitionSize]:
        """Return, by partition, how many records and bytes (as stored) it keeps, as its leader counts it.

        A partition whose leader does not answer in time is left out. Raises UnknownTopic, UnknownPartition.
        """
        numbers = [check_partition(number) for number in partitions]
        return await self._channels.sizes(check_topic(topic), numbers, self._timeout_s(timeout))

    async def trim(self, topic: str, partition: int, before: Place, *, timeout: float | None = None) -> int:
        """Remove for good the records before an Offset, or before the first record at or after a datetime.

        Returns the log start after that. Disks follow segment by segment. Raises OffsetOutOfRange beyond the end; Held
        when a hold keeps some of them.
        """
        return await self._channels.trim(topic, partition, before, self._timeout_s(timeout))

    # ---- the brokers ---------------------------------------------------------------------------------

    async def brokers(self, *, timeout: float | None = None) -> list[Broker]:
        """Return the brokers that the registry knows now, by id; those that died some seconds ago may be among them."""
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
        """Which brokers have sent what to the scan `scan_id` (see Client.scan), as each broker counts it.

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
        """Return the channels of a topic, or of one of its partitions, by partition and name, as the leaders have them.

        Raises UnknownTopic, UnknownPartition.
        """
        return await self._channels.describe(topic, partition, self._timeout_s(timeout))

    async def seek_channel(
        self, topic: str, partition: int, channel: str, to: Place, *, unless_read: bool = False, make: bool = False,
        timeout: float | None = None,
    ) -> int:  # fmt: skip
        """Move a channel to an Offset, "earliest", "latest" or a datetime, and return its position after that.

        The channel's consumer is Fenced at its next commit; with `unless_read`, the call raises Fenced instead while
        the channel has a consumer. With `make` a missing channel begins at `to`. Raises UnknownChannel,
        OffsetOutOfRange, OutcomeUnknown.
        """
        timeout_s = self._timeout_s(timeout)
        return await self._channels.seek(topic, partition, channel, to, timeout_s, unless_read=unless_read, make=make)

    async def delete_channel(self, topic: str, partition: int, channel: str, *, timeout: float | None = None) -> None:
        """Delete a channel of one partition, with its cursor. Its consumer gets an error. Raises UnknownChannel."""
        await self._channels.delete(topic, partition, channel, self._timeout_s(timeout))

    async def get_consumer(
        self, topic: str, partition: int, channel: str, *, timeout: float | None = None
    ) -> ConsumerDescription | None:
        """Return the consumer on record for a channel of a partition, or None. The consumer may have died since.

        Raises UnknownChannel.
        """
        return await self._channels.get_consumer(topic, partition, channel, self._timeout_s(timeout))

    async def unset_consumer(
        self, topic: str, partition: int, channel: str, epoch: int = 0, *, timeout: float | None = None
    ) -> None:
        """Remove the registration of a channel's consumer; with an `epoch`, only if the consumer has that epoch. A
        consumer that is reading is not stopped.

        Raises UnknownChannel.
        """
        checks.check_count("epoch", epoch, 0)
        await self._channels.unset_consumer(topic, partition, channel, epoch, self._timeout_s(timeout))

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
        await holds.hold_once(
            self._cluster, topic, number, first, HoldTerms(hold_id, lease_s), self._timeout_s(timeout)
        )
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
        lease_request = HoldTerms(holds.check_hold_id(hold_id), lease_s, enough, light)
        name, timeout_s = check_topic(topic), self._timeout_s(timeout)
        return await holds.hold_many(self._cluster, name, offsets, lease_request, timeout_s, partial=partial)

    async def release_hold(self, topic: str, partition: int, hold_id: bytes, *, timeout: float | None = None) -> None:
        """End a hold, whichever client made it: its records may be removed from now on. A missing hold is no error."""
        released = HoldTerms(holds.check_hold_id(hold_id), 0.0)
        number, timeout_s = check_partition(partition), self._timeout_s(timeout)
        await holds.hold_once(self._cluster, check_topic(topic), number, 0, released, timeout_s)

    async def _feature_level(self, request: pb.FeatureLevelRequest, timeout: float | None) -> FeatureLevel:
        return feature_level.read(await self._brokers.each(request, self._timeout_s(timeout)))
