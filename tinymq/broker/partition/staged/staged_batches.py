"""Everything that one replica of a partition stages, as its partition sees it: delayed batches, and transactions."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.errors import TinymqError
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.group_port import RecordLog
from tinymq.broker.partition.staged.copier import Copier
from tinymq.broker.partition.staged.delays import Delays
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.partition.staged.transactions import PartitionTransactions
from tinymq.broker.state.staged import Waiting
from tinymq.broker.transactions.led_transactions import AskCoordinator
from tinymq.format.entry import Entry


class StagedBatches:
    """One object per replica."""

    def __init__(self, name: str, port: LogPort, deadlines: Deadlines, ask_coordinator: AskCoordinator) -> None:
        self.delays = Delays(name, port, deadlines)
        self.transactions = PartitionTransactions(name, port, deadlines.clock, ask_coordinator)
        self.copier = Copier(name, port, self.delays, self.transactions)

    @property
    def waiting_now(self) -> Waiting:
        """The batches that wait, including those that this leader has appended and not applied yet."""
        return self.delays.waiting_now.plus(self.transactions.waiting_now)

    def applied(self, entry: Entry, *, leading: bool) -> None:
        """An entry is applied."""
        self.delays.applied(entry, leading=leading)
        self.transactions.applied(entry)

    def lead(self) -> None:
        self.delays.lead()
        self.transactions.lead()

    def follow(self, error: Callable[[], TinymqError]) -> None:
        """Stop leading. Calls that have appended nothing yet are refused with that error."""
        self.delays.follow()
        self.transactions.follow(error)

    def count(self) -> None:
        """Report this replica's waiting batches to the broker's totals."""
        self.delays.count()
        self.transactions.count()

    def forget(self) -> None:
        """Take this replica out of the broker's totals: it is closed."""
        self.delays.forget()
        self.transactions.forget()

    def release(self, log: RecordLog) -> None:
        """As the leader: begin to copy the batches that keep segments which retention has reached."""
        self.copier.release(log)
