"""AsyncGroupAdmin: what an application can read and change of consumer groups and their dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.admin.dead_letters import DeadLetterCalls, RecordStory, Redriven
from tinymq.client.admin.groups import GroupCalls, GroupCursor, GroupDescription, GroupMember
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transaction_admin import AsyncTransactionAdmin
from tinymq.client.common.start_positions import Place


class AsyncGroupAdmin(AsyncTransactionAdmin):
    """Consumer groups and dead letters: a part of `mq.admin`. AsyncAdmin says what holds for every call, and what
    `timeout` means.

    admin = mq.admin
    await admin.create_topic("jobs", partitions=2, exist_ok=True)
    await admin.create_group("crew", "jobs", kind="queue", settings={"lease_ms": 60_000}, exist_ok=True)
    await admin.alter_group("crew", {"rate_max": 50})
    await admin.pause_group("crew")
    await admin.resume_group("crew")
    await admin.seek_group("crew", "latest", topic="jobs", partitions=[0])
    print(await admin.purge_group("crew", dry_run=True), await admin.group_lag("crew"))
    print([group.name for group in await admin.list_groups()], (await admin.describe_group("crew")).kind)
    print(await admin.group_members("billing"), await admin.delete_group("crew"))
    print(await admin.why("emails", 0, 0), await admin.stories("emails", 0, 0, 10))
    print(await admin.redrive("emails.dlq", 0, 0), await admin.purge_dead_letters("emails.dlq", 0, before=1))
    await admin.delete_topic("jobs")
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._brokers = BrokerCalls(cluster)
        self._groups = GroupCalls(cluster, self._brokers)
        self._letters = DeadLetterCalls(cluster)

    async def create_group(
        self, name: str, topics: str | Sequence[str], *, kind: str = "stream", start: Place = "earliest",
        settings: Mapping[str, object] | None = None, exist_ok: bool = False, timeout: float | None = None,
    ) -> GroupDescription:  # fmt: skip
        """Make a consumer group, of the kind "stream" or "queue", and wait until it has a cursor in every partition.

        `topics`: names, and patterns such as "orders-*". `start`: "earliest", "latest" or a datetime. `settings`: by
        name, such as {"lease_ms": 60_000, "retry_ms": [10_000, 60_000]}; docs/groups.md has them all. With `exist_ok` a
        group of that name and kind is as good. Raises UnknownTopic, AlreadyExists, WrongKind, InvalidConfig.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        return await self._groups.create(
            name, names, kind, start, settings or {}, exist_ok=exist_ok, timeout_s=self._timeout_s(timeout)
        )

    async def alter_group(
        self, name: str, settings: Mapping[str, object], *, dry_run: bool = False, timeout: float | None = None
    ) -> GroupDescription:
        """Change settings of a group, all of these or none. `dry_run`: only say what the group would be.

        Settings on which workers rely while they hold records, such as `lease_ms`, change only while no record is
        leased. Raises UnknownGroup, InvalidConfig, OutcomeUnknown.
        """
        return await self._groups.alter(name, settings, self._timeout_s(timeout), dry_run=dry_run)

    async def pause_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """Stop granting records to a queue group's workers, until `resume_group`. They may still settle the records
        that they hold.

        Raises UnknownGroup, WrongKind (of a stream group), OutcomeUnknown.
        """
        return await self._groups.alter(name, {}, self._timeout_s(timeout), paused=True)

    async def resume_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """End the pause of a queue group. Raises as `pause_group`."""
        return await self._groups.alter(name, {}, self._timeout_s(timeout), paused=False)

    async def purge_group(self, name: str, *, dry_run: bool = False, timeout: float | None = None) -> int:
        """Settle all records of a queue group that are there now, without delivering them; workers that hold some get
        LeaseLost. Returns how many were not settled just before. Raises UnknownGroup, WrongKind, OutcomeUnknown."""
        return await self._groups.purge(name, self._timeout_s(timeout), dry_run=dry_run)

    async def delete_group(self, name: str, *, timeout: float | None = None) -> int:
        """Delete a group with its cursors. Its members get an error. Raises UnknownGroup.

        Returns how many records were on their way to the dead letters: they stay in their topic alone.
        """
        return await self._groups.delete(name, self._timeout_s(timeout))

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupDescription]:
        """Return all consumer groups, by name."""
        return await self._groups.list_all(self._timeout_s(timeout))

    async def describe_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        """Return one consumer group: kind, topics, settings, state. Raises UnknownGroup."""
        return await self._groups.describe(name, self._timeout_s(timeout))

    async def group_lag(self, name: str, *, timeout: float | None = None) -> list[GroupCursor]:
        """Return a group's cursor in each partition: position, lag in records, what hinders it, as the leaders have it.

        Raises UnknownGroup.
        """
        return await self._groups.cursors(name, self._timeout_s(timeout))

    async def group_members(self, name: str, *, timeout: float | None = None) -> list[GroupMember]:
        """Return the members of a stream group, and which partitions each has. Raises UnknownGroup, WrongKind."""
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
        """Return the history of the record at `offset` in each group and channel.

        Raises UnknownTopic, UnknownPartition, OffsetOutOfRange (it is not there yet).
        """
        return (await self._letters.why(topic, partition, offset, 1, self._timeout_s(timeout)))[0]

    async def stories(
        self, topic: str, partition: int, offset: int, count: int, *, timeout: float | None = None
    ) -> list[RecordStory]:
        """Return the same as `why` for up to `count` records, 1 to 1,000, from `offset` on. Raises as `why`."""
        return await self._letters.why(topic, partition, offset, count, self._timeout_s(timeout))

    async def redrive(
        self, topic: str, partition: int, offset: int, *, run: bytes = b"", timeout: float | None = None
    ) -> Redriven:
        """Send the dead letter at `offset` to the end of its source, and settle it. The same `run`, 16 bytes, sends it
        once.

        Returns its new place. Raises OffsetOutOfRange, InvalidRequest (it is no dead letter), OutcomeUnknown.
        """
        return await self._letters.redrive(topic, partition, offset, run, self._timeout_s(timeout))

    async def purge_dead_letters(self, topic: str, partition: int, before: int, *, timeout: float | None = None) -> int:
        """Settle the dead letters of a partition below an offset without sending them back.

        Returns how many that changed. The records go by retention. Raises UnknownTopic, OffsetOutOfRange.
        """
        return await self._letters.purge(topic, partition, before, self._timeout_s(timeout))
