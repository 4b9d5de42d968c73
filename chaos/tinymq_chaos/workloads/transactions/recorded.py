"""One transaction of a program: each of its calls is recorded, and the whole ends by what the program knows of its
outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import Fenced, InvalidRequest, TinymqError
from tinymq.broker.coordinator.coordinator import coordinator_of
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, COORDINATORS
from tinymq.client import AsyncClient
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer

COMMITS_MAX = 3  # of one transaction, while its outcome is unknown
LAST_S = 10.0  # after all faults: until nothing is unfinished
GIVEN_UP = 0.2  # how often a commit without an answer is rolled back instead of repeated


@dataclass(slots=True)
class RecordedTransaction:
    """A transaction of the client, and its calls in the history."""

    context: Context
    process: str
    transactional_id: str
    inner: Any  # AsyncTransaction, or a ThreadedObject around a Transaction
    fenced: bool = False  # another program has taken the id

    @classmethod
    def of(
        cls, context: Context, client: AsyncClient, process: str, transactional_id: str, **settings: Any
    ) -> RecordedTransaction:
        """Make a transaction, which is not begun."""
        limits: dict[str, Any] = {"block_ms_max": CALL_S * 1000, "delivery_timeout_ms": CALL_S * 1000}
        return cls(context, process, transactional_id, client.transaction(transactional_id, **limits, **settings))

    async def begin(self) -> str:
        """Begin. Return the code of the error, or ""."""
        with recording(
            self.context, self.process, "begin_transaction", transactional_id=self.transactional_id
        ) as began:  # fmt: skip
            await self.inner.begin(timeout=CALL_S)
            began.ok()
        self.fenced = began.error == Fenced.code
        return began.error

    async def send(self, sender: NumberedProducer, parts: list[list[Any]]) -> str:
        """Send the records, those of different partitions mixed, in one burst or in several. If one is refused, roll
        back. Return the code of the error, or ""."""
        try:
            await self._send(sender, parts)
        except TinymqError as error:
            await self.roll_back()
            self.fenced = isinstance(error, Fenced)
            return error.code
        return ""

    async def _send(self, sender: NumberedProducer, parts: list[list[Any]]) -> None:
        left = {partition: list(records) for partition, records in parts}
        slow = self.context.rng.random() < 0.4
        while left:
            partition = self.context.rng.choice(sorted(left))
            content = sender.content(left[partition].pop(0)).arguments()
            await self.inner.send(sender.topic, partition=partition, **content)
            if not left[partition]:
                del left[partition]
            if slow:
                await pause(self.context, 0.0, 0.1)

    async def commit(self, call: Call, wait: str) -> None:
        """Commit, and end `call`. While the outcome is unknown, ask again; or give up, and roll back what may be
        committed."""
        for attempt in range(COMMITS_MAX):
            if attempt and self.context.rng.random() < GIVEN_UP:
                await self._roll_back_unknown(call)
                return
            commit = await self.commit_once(call.args["records"], wait, attempt)
            if commit.outcome is not Outcome.UNKNOWN:
                break
            await pause(self.context, 0.0, 1.0)
        self.end_as(commit, call)

    def end_as(self, commit: Call, call: Call) -> None:
        """End `call`, the whole transaction, as its commit has ended."""
        if commit.outcome is Outcome.OK:
            call.ok(commit.result)
        elif commit.outcome is Outcome.UNKNOWN:
            call.unknown(commit.error)
        else:
            self.fenced = commit.error == Fenced.code
            call.failed(commit.error)

    async def commit_once(self, records: list[str], wait: str, attempt: int = 0, timeout_s: float = CALL_S) -> Call:
        """Commit, and return the call, which has ended."""
        commit = begin(
            self.context, self.process, "commit_transaction",
            transactional_id=self.transactional_id, records=records, wait=wait, attempt=attempt,
        )  # fmt: skip
        with recorded(commit):
            commit.ok(await self.inner.commit(wait, timeout=timeout_s))
        return commit

    async def commit_nothing(self) -> None:
        """Commit a transaction in which nothing was sent."""
        call = await self.commit_once([], "decided")
        self.fenced = call.error == Fenced.code

    async def roll_back(self) -> None:
        """Roll back a transaction whose commit nobody has asked for: whatever the answer, it is not committed."""
        with recording(
            self.context, self.process, "abort_transaction", transactional_id=self.transactional_id
        ) as call:  # fmt: skip
            await self.inner.abort(timeout=CALL_S)
            call.ok()

    async def _roll_back_unknown(self, call: Call) -> None:
        """Roll back a transaction of unknown outcome. The answer tells the outcome."""
        with recording(
            self.context, self.process, "abort_transaction", transactional_id=self.transactional_id
        ) as aborted:  # fmt: skip
            try:
                await self.inner.abort(timeout=CALL_S)
            except Fenced:  # which is an InvalidRequest, too, and says nothing of the outcome
                raise
            except InvalidRequest:  # it is committed
                aborted.failed(InvalidRequest.code)
                call.ok(False)
                return
            aborted.ok()
        if aborted.outcome is Outcome.OK:
            call.failed("rolled back")
        else:
            self.fenced = aborted.error == Fenced.code
            call.unknown(aborted.error)


def watch_coordinator(context: Context, transactional_id: str) -> None:
    """Let faults strike the coordinator of an id, too."""
    context.watch_leader(COORDINATOR_TOPIC, coordinator_of(transactional_id, COORDINATORS))


async def look_for_unfinished(context: Context, client: AsyncClient, ids: list[str]) -> None:
    """Ask for the unfinished transactions until all of them are over."""
    with recording(context, f"{context.name} unfinished", "unfinished", LAST_S, ids=ids) as call:
        until_s = context.clock.monotonic() + LAST_S
        while True:
            try:
                found = [await client.admin.describe_transactional_id(each, timeout=CALL_S) for each in ids]
                left = [[each.transactional_id, t.number, t.state] for each in found for t in each.transactions]
                if not left or context.clock.monotonic() > until_s:
                    call.ok(left)
                    return
            except TinymqError as error:
                if context.clock.monotonic() > until_s:
                    fail(call, error)
                    return
            await context.clock.sleep(0.2)
