"""Burials in random lives: copies come late and twice, from leaders that are deposed; groups seek; dead letters lose
their leader, forget ids, or are deleted and made again. No dead letter is there twice, and none is missing.

The source's replicated state, the partition of the dead letters and its receiver are the real ones.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.broker.partition.test_partition import Bench
from tests.broker.state.queue_commands import ID, Queue
from tests.fakes.batches import payload
from tests.seeds import first_of
from tinymq.base.config import Limits
from tinymq.base.errors import TinymqError
from tinymq.broker.dead_letters.copy_ids import burial_id, redrive_id
from tinymq.broker.dead_letters.receiver import Receiver
from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.partition.partition import Produced
from tinymq.broker.state import message_ids
from tinymq.broker.state.queue_group import Burial
from tinymq.format.batch import decode_batch
from tinymq.format.entry import Kind

SOURCE = b"s" * 16
RECORDS = 3
STEPS = 120


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.source = Queue(RECORDS)
        self.receiver = Receiver(SimpleNamespace(limits=Limits()))  # type: ignore[arg-type]
        self.made = 0
        self.seeks = 0
        self.known: list[Burial] = []  # that some leader has begun to carry out; it may be deposed since
        self.sent: list[tuple[asyncio.Task[Produced], Burial]] = []
        self.done: list[tuple[bytes, bytes]] = []  # id and topic of each burial that is over
        self.make_target()

    def make_target(self) -> None:
        self.made += 1
        self.topic_id = bytes([self.made]) * 16
        self.target = Bench()

    async def step(self) -> None:
        actions = (self.bury, self.bury, self.send, self.send, self.send, self.commit, self.commit, self.answer)
        rare = (self.seek, self.change_leaders, self.forget, self.make_again)
        action = self.rng.choice(actions) if self.rng.random() < 0.85 else self.rng.choice(rare)
        action()
        for _ in range(4):
            await asyncio.sleep(0)
        self.check()

    def bury(self) -> None:
        offset, ref = self.rng.randrange(RECORDS), self.source.ref()
        copy_id = burial_id(SOURCE, 0, offset, history=0, group_id=ID, generation=ref.generation)
        end = self.target.partition.high_watermark
        self.source.bury(offset, copy_id.digest, topic_id=self.topic_id, end=end, ref=ref)
        self.known = [*self.known[-9:], *self.source.group.burials.values()]

    def send(self) -> None:
        """By the leader, or by one of before that does not know that it is deposed."""
        if not self.known:
            return
        burial = self.rng.choice(self.known)
        if burial.topic_id != self.topic_id:
            return  # refused: the topic is gone
        data = payload(1, value=burial.message_id)
        work = self.receiver.store(self.target.partition, CopyId(burial.message_id), burial.end, data)
        self.sent.append((asyncio.ensure_future(work), burial))

    def commit(self) -> None:
        group = self.target.group
        group.commit(self.rng.randint(0, len(group.log.entries) - group.applied))

    def answer(self) -> None:
        """An answer arrives, and the leader of that moment proposes Buried."""
        over = [(task, burial) for task, burial in self.sent if task.done()]
        self.sent = [(task, burial) for task, burial in self.sent if not task.done()]
        for task, burial in over:
            if isinstance(task.exception(), TinymqError):
                continue
            task.result()
            if any(known.message_id == burial.message_id for known in self.source.group.burials.values()):
                self.source.end_burial(burial.message_id)
                self.done.append((burial.message_id, burial.topic_id))

    def seek(self) -> None:
        self.seeks += 1
        self.source.seek(0, self.seeks)

    def change_leaders(self) -> None:
        self.target.group.lose_leadership(keep_tail=self.rng.random() < 0.5)
        self.target.group.win()

    def forget(self) -> None:
        """Copies of other sources displace the remembered ids."""
        for _ in range(3):
            data = self.rng.randbytes(16)
            work = self.receiver.store(self.target.partition, CopyId(data), 1 << 62, payload(1, value=data))
            self.sent.append((asyncio.ensure_future(work), Burial(data, 0, self.topic_id, 0, 0, b"")))

    def make_again(self) -> None:
        self.make_target()
        for offset, burial in self.source.group.burials.items():
            self.source.bury(offset, burial.message_id, topic_id=self.topic_id)
        self.known += self.source.group.burials.values()

    def check(self) -> None:
        log = self.target.group.log.entries
        data = [entry for entry in log if entry.header.kind == Kind.DATA]
        values = [decode_batch(entry.payload, Limits()).column(1)[0].as_py()[:16] for entry in data]
        assert len(set(values)) == len(values), "a dead letter is there twice"
        committed = {v for v, e in zip(values, data, strict=True) if e.index <= self.target.group.applied}
        missing = [id for id, topic_id in self.done if topic_id == self.topic_id and id not in committed]
        assert not missing, "a record is settled as buried, and is in no dead letters"


@pytest.mark.parametrize("seed", first_of(range(60), 6))
def test_random_lives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 2)

    async def live() -> Any:
        life = Life(seed)
        for _ in range(STEPS):
            await life.step()
        for task, _ in life.sent:
            task.cancel()
        await asyncio.gather(*(task for task, _ in life.sent), return_exceptions=True)
        return life

    life = asyncio.run(live())
    assert life.done, f"seed {seed} buries nothing"


def test_each_thing_that_makes_another_record_makes_another_id() -> None:
    place = {"history": 1, "group_id": 2, "generation": 3}
    first = burial_id(SOURCE, 0, 5, **place)
    others = [burial_id(SOURCE, 0, 5, **{**place, name: 9}) for name in place]
    others += [burial_id(SOURCE, 1, 5, **place), burial_id(SOURCE, 0, 6, **place), burial_id(b"x" * 16, 0, 5, **place)]
    others += [redrive_id(SOURCE, 0, 5, bytes(16)), redrive_id(SOURCE, 0, 5, b"r" * 16)]
    assert len({first, *others}) == 1 + len(others)
    assert first == burial_id(SOURCE, 0, 5, **place)
    assert first.digest.hex() == GOLDEN_ID


GOLDEN_ID = "bcd6d88d7e4bb82feb1d5e54e33cefa5"
