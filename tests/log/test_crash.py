"""Crash at every disk operation of a log's life: all acknowledged entries are there, and none is invented."""

from __future__ import annotations

import pytest

from tests.log.values import (
    GROUP,
    OTHER,
    append,
    everything,
    faulty,
    first_entry,
    following,
    open_both,
    open_store,
    run,
)
from tests.log.witness import Witness
from tinymq.log import Log
from tinymq.simulation.faulty_files import Crash, FaultyFiles


async def life(files: FaultyFiles, witness: Witness, votes: dict[str, tuple[int, int | None]]) -> None:
    """Every disk operation of a log, in one short life."""
    witness.begin(first_entry())
    store = await open_store(files)
    await store.bind_cluster(b"c" * 16)
    log = (await store.open_log(GROUP, first_entry())).log
    witness.opened(log)

    async def add(count: int, **values: int) -> None:
        before = log.last_index
        added = append(log, count, **values)
        witness.appended(added)
        assert log.last_index == before + count
        await store.writer.drain()

    async def vote(term: int, voted_for: int | None) -> None:
        store.votes.set(GROUP, term, voted_for)
        await store.writer.drain()
        assert store.votes.durable(GROUP)
        votes["acked"] = (term, voted_for)

    await vote(1, 2)
    await add(3)
    await add(40)  # several segments in one sync batch
    log.note_commit(22)
    log.note_applied(22)
    witness.truncated(25)
    log.truncate_from(25)
    await add(4, term=2)
    await vote(3, None)
    witness.truncated(28)
    log.truncate_from(28)  # twice in one sync batch, and back into an earlier segment
    log.append(added := [following(log, b"short lived", term=3)])
    witness.appended(added)
    witness.truncated(24)
    log.truncate_from(24)
    await add(30, term=4)
    for index in range(1, log.last_index + 1):
        if log.segments.end_at(index):
            log.save_snapshot(index, b"state at %d" % index)
    await store.writer.drain()
    log.note_commit(50)
    log.note_applied(50)
    log.remove_before(30)
    witness.removed(log)
    await store.writer.drain()
    await add(5)
    other = (await store.open_log(OTHER, first_entry())).log
    append(other, 5)
    await store.writer.drain()
    await store.delete_log(OTHER)
    await store.close()


def operations() -> int:
    files = faulty()
    run(life(files, Witness(), {}))
    return files.operations


OPERATIONS = operations()


@pytest.mark.parametrize("how", ["power_cut", "kill", "kill, then power_cut"])
@pytest.mark.parametrize("part", range(4))
def test_a_crash_after_every_operation(part: int, how: str) -> None:
    assert OPERATIONS > 100
    for after in range(part, OPERATIONS, 4):
        crash_and_check(after, seed=after, how=how)


def crash_and_check(after: int, seed: int, how: str) -> None:
    files = faulty(seed)
    witness = Witness()
    votes: dict[str, tuple[int, int | None]] = {}
    files.crash_after(after, bytes_written=(after * 97) % 700)
    with pytest.raises(Crash):
        run(life(files, witness, votes))
    if how == "kill, then power_cut":
        files.kill()
        run(reopen(files, witness, votes))  # the entries that it found counted, so they are on the disk now
        files.power_cut()
    elif how == "kill":
        files.kill()
    else:
        files.power_cut()
    found = run(reopen(files, witness, votes))
    files.power_cut()
    assert run(reopen(files, witness, votes)) == found
    assert run(go_on(files)) == found + 3


async def reopen(files: FaultyFiles, witness: Witness, votes: dict[str, tuple[int, int | None]]) -> int:
    store = await open_store(files)
    if 1 in witness.acked or GROUP in store.list_groups():
        opened = await store.open_log(GROUP, first_entry())
        found = await witness.check(opened)
        witness.acked |= {e.index: e.header.header_crc for e in found}
    else:
        opened = await store.open_log(GROUP, first_entry())
    term, vote = store.votes.get(GROUP)
    if "acked" in votes:
        assert (term, vote) >= votes["acked"] or term > votes["acked"][0]
    for group in store.list_groups():
        if group != GROUP:
            assert (await store.open_log(group, first_entry())).damage is None
    await store.abandon()
    return opened.log.last_index


async def go_on(files: FaultyFiles) -> int:
    """Check that the log still works: append, close, reopen."""
    store, opened = await open_both(files)
    append(opened.log, 3, term=9)
    await store.close()
    store, opened = await open_both(files)
    assert opened.damage is None
    await everything(opened.log)
    await store.close()
    return opened.log.last_index


@pytest.mark.parametrize("how", ["cut", "zeros", "old bytes"])
def test_the_last_batch_is_torn_at_every_byte(how: str) -> None:
    """The last synced batch survives, and the whole frames of the unsynced batch behind it."""
    files = faulty()
    witness = Witness()

    async def write(log: Log, count: int) -> None:
        witness.appended(append(log, count, size=40))

    async def before() -> int:
        store, opened = await open_both(files)
        witness.begin(first_entry())
        witness.opened(opened.log)
        await write(opened.log, 3)
        await store.writer.drain()
        size = opened.log.size_bytes
        await write(opened.log, 3)
        await store.writer.drain()
        await store.abandon()
        witness.acked = {i: crc for i, crc in witness.acked.items() if i <= 4}
        return size

    kept = run(before())
    path = next(p for p in files.paths() if p.endswith(".log"))
    whole = files.content(path).rstrip(b"\0")
    marks = files.content("marks")
    files.power_cut()
    one_mark_back = len(marks.rstrip(b"\0")) - 112  # frames of the second batch, which was not durable yet
    frames = (len(whole) - kept) // 3
    for size in range(kept, len(whole) + 1, 1 if how == "cut" else 7):
        tail = {"cut": b"", "zeros": bytes(len(whole) - size), "old bytes": b"\xa5" * (len(whole) - size)}[how]
        files.put(path, whole[:size] + tail)
        files.put("marks", marks[: one_mark_back // 8 * 8].ljust(len(marks), b"\0"))

        async def check(size: int = size) -> None:
            store, opened = await open_both(files)
            await witness.check(opened)
            assert opened.log.last_index == 4 + (size - kept) // frames
            await store.abandon()

        run(check())


def test_above_the_mark_the_log_ends_at_the_first_bad_frame() -> None:
    """A power cut may keep the first and the last of three unsynced sectors."""
    torn = 0
    for seed in range(60):
        files = faulty(seed)
        witness = Witness()

        async def life(files: FaultyFiles = files, witness: Witness = witness) -> None:
            store, opened = await open_both(files)
            witness.begin(first_entry())
            witness.opened(opened.log)
            witness.appended(append(opened.log, 2))
            await store.writer.drain()
            files.crash_after(2)  # marks and frames are written, nothing is synced
            witness.appended(append(opened.log, 12, size=500))
            await store.writer.drain()

        with pytest.raises(Crash):
            run(life())
        files.power_cut()
        path = next(p for p in files.paths() if p.endswith("1.log"))
        content = files.content(path)

        async def check(files: FaultyFiles = files, witness: Witness = witness) -> int:
            store, opened = await open_both(files)
            await witness.check(opened)
            size = opened.log.size_bytes
            await store.abandon()
            return size

        size = run(check())
        torn += bool(content[size:].strip(b"\0"))
        assert not files.content(path)[size:].strip(b"\0")
    assert torn > 20
