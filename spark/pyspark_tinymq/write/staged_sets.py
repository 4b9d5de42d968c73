"""Staged sets for the thread of a task or a driver: the loop of its client does the work. Loads the client."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from tinymq.client.cluster.transactional_id_calls import SinkVersion
from tinymq.client.common.config import ProducerConfig
from tinymq.client.facade.client import Client
from tinymq.client.transaction.staged_set import StagedSet, StagedSetCore, commit_sets, discard_sets


class StagedSetWriter:
    """A StagedSetCore for one thread. Use it in `with`."""

    def __init__(self, client: Client, version: SinkVersion, config: ProducerConfig) -> None:
        self._loop_thread = client._loop_thread
        self._core = self._loop_thread.do(lambda: StagedSetCore(client._async.cluster(), version, config))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop_thread.alive:
            self._loop_thread.do(self._core.close)

    def begin(self, run: str, lasts_ms: int, timeout_s: float) -> bool:
        """See StagedSetCore."""
        return self._loop_thread.run(self._core.begin(run, lasts_ms, timeout_s))

    def send_batch(self, topic: str, data: pa.RecordBatch, partition: int | None) -> None:
        """See StagedSetCore."""
        self._loop_thread.run(self._core.send_batch(topic, data, partition))

    def end(self) -> StagedSet:
        """See StagedSetCore."""
        return self._loop_thread.run(self._core.end())


def commit_version(client: Client, version: SinkVersion, sets: Sequence[StagedSet], timeout_s: float) -> bool:
    """See commit_sets."""

    async def work() -> bool:
        return await commit_sets(client._async.cluster(), version, sets, timeout_s)

    return client._loop_thread.run(work())


def discard_version(client: Client, application: str, sets: Sequence[StagedSet]) -> None:
    """See discard_sets."""

    async def work() -> None:
        await discard_sets(client._async.cluster(), application, sets)

    client._loop_thread.run(work())
