"""A broker's data directory: its owner, its groups, and the errors that refuse it."""

from __future__ import annotations

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.log.values import GROUP, LIMITS, OTHER, append, everything, faulty, first_entry, open_both, open_store, run
from tinymq.base.clock import SystemClock
from tinymq.base.errors import Closed, FolderInUse, UnsupportedVersion, WrongBroker, WrongCluster
from tinymq.format.entry import crc32c
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.log import RealFiles, Store, ThreadRunner
from tinymq.log.broker_files.durability_marks import load_marks
from tinymq.log.files.layout import group_directory


def test_a_data_directory_has_a_permanent_random_incarnation() -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files, seed=5)
        incarnation = store.identity.incarnation
        assert len(incarnation) == 16
        assert store.identity.cluster_id is None
        await store.close()
        store = await open_store(files, seed=6)
        assert store.identity.incarnation == incarnation
        await store.close()
        other = await open_store(faulty(), seed=7)
        assert other.identity.incarnation != incarnation

    run(body())


def test_a_data_directory_belongs_to_one_cluster() -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files)
        await store.bind_cluster(b"c" * 16)
        await store.bind_cluster(b"c" * 16)
        with pytest.raises(WrongCluster):
            await store.bind_cluster(b"d" * 16)
        await store.abandon()
        files.power_cut()
        store = await open_store(files)
        assert store.identity.cluster_id == b"c" * 16

    run(body())


def test_another_brokers_data_directory_is_refused_and_unchanged() -> None:
    async def body() -> None:
        files = faulty()
        first = await open_store(files)
        await first.bind_cluster(b"c" * 16)
        await first.close()
        before = {p: files.content(p) for p in files.paths()}
        with pytest.raises(WrongBroker):
            await open_store(files, broker_id=2)
        assert {p: files.content(p) for p in files.paths()} == before
        await (await open_store(files)).close()

    run(body())


def test_a_data_directory_without_a_cluster_may_change_its_broker_id() -> None:
    """The directory of a start with the wrong broker number, or without a cluster."""

    async def body() -> None:
        files = faulty()
        first = await open_store(files)
        await first.close()
        second = await open_store(files, broker_id=2)
        assert (second.identity.broker_id, second.identity.cluster_id) == (2, None)
        await second.bind_cluster(b"c" * 16)
        await second.close()
        files.power_cut()
        assert (await open_store(files, broker_id=2)).identity == second.identity

    run(body())


def test_a_data_directory_in_use_is_refused() -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files)
        with pytest.raises(FolderInUse):
            await open_store(files)
        await store.close()
        await (await open_store(files)).close()

    run(body())


def test_a_data_directory_of_a_newer_format_is_refused() -> None:
    async def body() -> None:
        files = faulty()
        await (await open_store(files)).close()
        fields = json.loads(files.content("broker.json"))
        del fields["crc32c"]
        fields["format"] = 3
        crc = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
        files.put("broker.json", json.dumps({**fields, "crc32c": crc}).encode())
        with pytest.raises(UnsupportedVersion, match=r"it has version 3 of its format, .* versions up to 2") as refused:
            await open_store(files)
        assert "start this broker with the newer tinymq" in refused.value.hint

    run(body())


def test_a_data_directory_stores_the_feature_level_and_a_hold() -> None:
    """The level is stored durably, in a format that builds without feature levels refuse."""

    async def body() -> None:
        files = faulty()
        store = await open_store(files)
        await store.bind_cluster(b"c" * 16)
        await store.hold_feature_level(1)
        assert json.loads(files.content("broker.json"))["format"] == 1, "an older build may still open it"
        await asyncio.gather(store.note_feature_level(2), store.hold_feature_level(0), store.note_feature_level(1))
        await store.hold_feature_level(2)
        await store.abandon()
        files.power_cut()
        fields = json.loads(files.content("broker.json"))
        assert (fields["format"], fields["feature_level"], fields["held_level"]) == (2, 2, 2)
        store = await open_store(files)
        assert (store.identity.feature_level, store.identity.held_level) == (2, 2)
        assert store.identity.cluster_id == b"c" * 16
        await store.close()
        del fields["crc32c"]
        fields["feature_level"] = 9
        crc = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
        files.put("broker.json", json.dumps({**fields, "crc32c": crc}).encode())
        with pytest.raises(UnsupportedVersion, match=f"knows feature level {KNOWN_LEVEL}, and this cluster is at 9"):
            await open_store(files)

    run(body())


def test_groups_are_listed_and_remembered() -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files)
        assert store.list_groups() == []
        await store.open_log(GROUP, first_entry())
        await store.open_log(OTHER, first_entry())
        assert sorted(store.list_groups()) == [GROUP, OTHER] == sorted(store.groups_ever_opened)
        await store.close()
        files.remove_tree(group_directory(OTHER))
        store = await open_store(files)
        assert store.list_groups() == [GROUP]
        assert sorted(store.groups_ever_opened) == [GROUP, OTHER]
        await store.close()

    run(body())


def test_a_deleted_group_leaves_nothing() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        store.votes.set(GROUP, 3, 1)
        append(opened.log, 20)
        await store.writer.drain()
        await store.delete_log(GROUP)
        await store.delete_log(OTHER)  # never there
        assert store.list_groups() == store.groups_ever_opened == []
        await store.close()
        files.power_cut()
        assert not [p for p in files.paths() if p.startswith("groups/")]
        store, opened = await open_both(files)
        assert (opened.count, opened.log.last_index) == (0, 1)
        assert store.votes.get(GROUP) == (0, None)
        await store.close()

    run(body())


def test_a_closed_log_opens_again() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        added = append(opened.log, 20)
        await store.close_log(GROUP)
        await store.close_log(GROUP)
        opened = await store.open_log(GROUP, first_entry())
        assert (await everything(opened.log))[1:] == added
        append(opened.log, 3)
        await store.close()
        assert load_marks(files).marks[GROUP].index == 24

    run(body())


def test_a_closed_log_accepts_nothing() -> None:
    async def body() -> None:
        store, _ = await open_both(faulty())
        await store.close()
        with pytest.raises(Closed):
            await store.open_log(OTHER, first_entry())

    run(body())


def test_an_abrupt_end_loses_only_unwritten_bytes() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        append(opened.log, 5)
        await store.writer.drain()
        append(opened.log, 5)
        await store.abandon()
        store, opened = await open_both(files)
        assert opened.log.last_index == 6
        await store.close()

    run(body())


def test_votes_are_remembered_and_never_changed_within_a_term() -> None:
    async def body() -> None:
        files = faulty()
        store, _ = await open_both(files)
        heard: list[bool] = []
        store.votes.on_durable.append(lambda: heard.append(store.votes.durable(GROUP)))
        assert store.votes.get(GROUP) == (0, None)
        assert store.votes.durable(GROUP)
        store.votes.set(GROUP, 5, None)
        store.votes.set(GROUP, 5, 3)
        assert not store.votes.durable(GROUP)
        assert store.votes.durable(OTHER)
        await store.writer.drain()
        assert heard == [True]
        store.votes.set(GROUP, 5, 3)
        assert store.votes.durable(GROUP), "nothing new"
        for term, vote in ((5, 2), (5, None), (4, 3), (0, None)):
            with pytest.raises(AssertionError):
                store.votes.set(GROUP, term, vote)
        for term in range(6, 9000):  # more than one file holds
            store.votes.set(GROUP, term, term % 3 or None)
            await store.writer.drain()
        await store.abandon()
        files.power_cut()
        store, _ = await open_both(files)
        assert store.votes.get(GROUP) == (8999, 8999 % 3 or None)
        await store.close()

    run(body())


def test_on_real_files(tmp_path: Path) -> None:
    """The same code on a real disk, with real threads."""

    async def opened() -> tuple[Store, ThreadPoolExecutor]:
        threads = ThreadPoolExecutor(2)
        store = await Store.open(
            RealFiles(tmp_path), ThreadRunner(threads), SystemClock(), broker_id=1, limits=LIMITS, rng=random.Random(1)
        )
        return store, threads

    async def body() -> None:
        store, threads = await opened()
        with pytest.raises(FolderInUse):
            await opened()
        log = (await store.open_log(GROUP, first_entry())).log
        expected = [first_entry(), *append(log, 50)]
        store.votes.set(GROUP, 2, 1)
        await store.writer.drain()
        log.truncate_from(30)
        expected = expected[:29] + append(log, 30, term=2)
        await store.close()
        threads.shutdown()
        store, threads = await opened()
        again = await store.open_log(GROUP, first_entry())
        assert again.damage is None
        assert await everything(again.log) == expected
        assert store.votes.get(GROUP) == (2, 1)
        await store.delete_log(GROUP)
        await store.close()
        threads.shutdown()

    run(body())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "LOCK", "ballots-a", "ballots-b", "broker.json", "groups", "marks",
    ]  # fmt: skip
