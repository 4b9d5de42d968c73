"""The offsets that transactions have staged for cursors of stream groups, in one partition. Pure, and replicated.

A program reads records as a member of a stream group, writes others, and commits both in one transaction. The offset is
judged when it is staged, as any commit: the member has the newest epoch of the cursor. From then on it depends on the
transaction alone. If that is committed, the cursor moves, whatever member has the partition by then. A later seek, or
the deletion of the group, takes precedence over it.

A new owner of the partition gets its position only when no offset is staged there any more (`of_group`): otherwise it
would handle records again whose results a transaction is about to publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinymq.base.errors import CorruptData, InvalidName, OutOfOrderSequence, QuotaExceeded
from tinymq.base.types import check_channel_name
from tinymq.base.value import value
from tinymq.broker.state.staged import TransactionId
from tinymq.proto import partition_pb2 as pb

OFFSETS_MAX = 1000  # of one partition, one for each transaction and group. Part of the replicated behaviour


@value
class OffsetsOfTransaction:
    """The offsets that one transaction has staged in this partition."""

    coordinator: int  # number of the partition of __coordinator that has the transaction
    count: int  # of StageOffset commands that took effect
    commits: dict[str, pb.Commit]  # the newest one of each group


class StagedOffsets:
    """The staged offsets of one partition, by transaction."""

    def __init__(self) -> None:
        self._staged: dict[TransactionId, OffsetsOfTransaction] = {}  # in the order of their first offsets
        self._commits = 0  # invariant: the sum over all transactions

    def __len__(self) -> int:
        return len(self._staged)

    def __iter__(self) -> Iterator[TransactionId]:
        return iter(self._staged)

    def get(self, transaction: TransactionId) -> OffsetsOfTransaction | None:
        return self._staged.get(transaction)

    def held(self, transaction: TransactionId) -> int:
        """How many offsets of the transaction took effect. The next one has this number."""
        staged = self._staged.get(transaction)
        return 0 if staged is None else staged.count

    def of_group(self, group: str, generation: int) -> list[TransactionId]:
        """The transactions that can still move a group's cursor of this generation, oldest first."""
        return [
            transaction
            for transaction, staged in self._staged.items()
            if (commit := staged.commits.get(group)) is not None and commit.generation == generation
        ]

    def check(self, command: pb.StageOffset) -> None:
        """Raises OutOfOrderSequence if an earlier offset of the transaction is missing, QuotaExceeded for too many."""
        staged = self._staged.get(name_of(command))
        if command.place > (0 if staged is None else staged.count):
            raise OutOfOrderSequence("an earlier offset of the transaction is missing")
        more = staged is None or command.commit.channel not in staged.commits
        if more and self._commits >= OFFSETS_MAX:
            message = f"open transactions have {self._commits} offsets in the partition"
            raise QuotaExceeded(message, hint="end transactions that are open")

    def stage(self, command: pb.StageOffset) -> None:
        """Apply a command that passed `check`. A repeated command changes nothing."""
        transaction = name_of(command)
        staged = self._staged.get(transaction) or OffsetsOfTransaction(command.coordinator, 0, {})
        if command.place != staged.count:
            return
        self._commits += command.commit.channel not in staged.commits
        commits = {**staged.commits, command.commit.channel: _copy(command.commit)}
        self._staged[transaction] = OffsetsOfTransaction(staged.coordinator, staged.count + 1, commits)

    def end(self, transaction: TransactionId) -> Sequence[pb.Commit]:
        """Apply the end of a transaction. Returns what it had staged, by group; nothing if it has ended before."""
        staged = self._staged.pop(transaction, None)
        if staged is None:
            return []
        self._commits -= len(staged.commits)
        return [staged.commits[group] for group in sorted(staged.commits)]

    # ---- as bytes

    def dump(self) -> Iterable[pb.StagedOffsets]:
        """The transactions. Equal logs give equal bytes."""
        return [
            pb.StagedOffsets(
                producer_id=transaction.producer_id,
                number=transaction.number,
                epoch=transaction.epoch,
                coordinator=staged.coordinator,
                count=staged.count,
                commits=[staged.commits[group] for group in sorted(staged.commits)],
            )
            for transaction, staged in self._staged.items()
        ]

    @classmethod
    def load(cls, stored: Iterable[pb.StagedOffsets], end: int) -> StagedOffsets:
        """The inverse of `dump`, for a log that ends at the offset `end`. Raises CorruptData for anything that `dump`
        cannot write."""
        loaded = cls()
        for each in stored:
            transaction, groups = name_of(each), [commit.channel for commit in each.commits]
            _check(transaction not in loaded._staged and 0 < len(groups) <= each.count)
            _check(groups == sorted(set(groups)) and all(_is_of_group(commit, end) for commit in each.commits))
            commits = {commit.channel: _copy(commit) for commit in each.commits}
            loaded._staged[transaction] = OffsetsOfTransaction(each.coordinator, each.count, commits)
            loaded._commits += len(commits)
        _check(loaded._commits <= OFFSETS_MAX)
        return loaded


def name_of(message: pb.StageOffset | pb.PublishOffsets | pb.StagedOffsets) -> TransactionId:
    """The transaction that a message names."""
    return TransactionId(message.producer_id, message.epoch, message.number)


def _copy(commit: pb.Commit) -> pb.Commit:
    """A copy: a part of a message would keep all of it in memory."""
    return pb.Commit(
        channel=commit.channel, epoch=commit.epoch, generation=commit.generation, offset=commit.offset,
        kind=commit.kind, group_id=commit.group_id,
    )  # fmt: skip


def _is_of_group(commit: pb.Commit, end: int) -> bool:
    try:
        check_channel_name(commit.channel)
    except InvalidName:
        return False
    return commit.kind == pb.STREAM and commit.group_id > 0 and commit.offset <= end


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's staged offsets are out of range")
