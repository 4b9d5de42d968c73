"""The contract of every RegistryService: records of any kind, and the feature level that they need."""

from __future__ import annotations

import asyncio

import pytest

from tinymq.base.errors import (
    InvalidName,
    InvalidRequest,
    QuotaExceeded,
    UnsupportedVersion,
    VersionConflict,
)
from tinymq.registry.state import bounds
from tinymq.registry.state.effects import FeatureLevelRaised, RecordChanged
from tinymq.registry.state.values import MetadataRecord
from tinymq.testing.registry_contract.bench import Bench, Scenario, broker


def test_records_are_written_read_listed_and_removed(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        del b.effects[:]
        registry = b.registry
        assert registry.get_record("group", "g") is None
        assert registry.get_all_records("group") == []
        first = await registry.put_record("group", "g", b"one", 0)
        assert first == MetadataRecord("group", "g", b"one", registry.version)
        assert registry.get_record("group", "g") == first
        other = await registry.put_record("user", "g", b"", 0)
        another = await registry.put_record("group", "a@b:c=+-.", b"\x00\xff", 0)
        assert registry.get_all_records("group") == [another, first], "by name, of one kind"
        second = await registry.put_record("group", "g", b"two", first.version)
        assert second.version > another.version > other.version > first.version
        await registry.remove_record("group", "g", second.version)
        assert registry.get_record("group", "g") is None
        assert registry.get_all_records("user") == [other]
        third = await registry.put_record("group", "g", b"three", 0)
        assert third.version > second.version, "no earlier version comes back"
        assert [(e.kind, e.name) for e in b.effects if isinstance(e, RecordChanged)] == [
            ("group", "g"), ("user", "g"), ("group", another.name), ("group", "g"), ("group", "g"), ("group", "g"),
        ]  # fmt: skip

    run(scenario)


def test_of_two_writers_who_saw_the_same_version_the_second_is_refused(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        put = b.registry.put_record
        first = await put("k", "n", b"1", 0)
        for version in (0, first.version - 1, first.version + 1, 1 << 60):
            with pytest.raises(VersionConflict):
                await put("k", "n", b"2", version)
            with pytest.raises(VersionConflict):
                await b.registry.remove_record("k", "n", version)
        with pytest.raises(VersionConflict):
            await put("k", "other", b"", 7)
        with pytest.raises(VersionConflict):
            await b.registry.remove_record("k", "other", 0)
        assert b.registry.get_all_records("k") == [first]
        writes = [put("k", "n", b"%d" % number, first.version) for number in range(5)]
        came = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(each, VersionConflict) for each in came) == 4
        (won,) = (each for each in came if isinstance(each, MetadataRecord))
        assert b.registry.get_record("k", "n") == won

    run(scenario)


def test_a_record_under_the_same_command_id_is_written_once(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        first = await b.registry.put_record("k", "n", b"1", 0, command_id=b"a" * 16)
        second = await b.registry.put_record("k", "n", b"2", first.version)
        assert await b.registry.put_record("k", "n", b"1", 0, command_id=b"a" * 16) == first
        assert b.registry.get_record("k", "n") == second

    run(scenario)


def test_records_are_watched_by_kind(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        seen: list[list[bytes]] = []
        b.registry.watch_records("k", lambda: seen.append([r.value for r in b.registry.get_all_records("k")]))
        first = await b.registry.put_record("k", "n", b"1", 0)
        await b.registry.put_record("other", "n", b"x", 0)
        await b.registry.remove_record("k", "n", first.version)
        assert seen == [[b"1"], []]

    run(scenario)


def test_what_is_refused_of_records(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        for kind in ("", "K", "1k", "k.k", "k/k", "k" * 64):
            with pytest.raises(InvalidName):
                await b.registry.put_record(kind, "n", b"", 0)
        for name in ("", ".", "..", "a/b", "a b", "\n", "é", "x" * 250):
            with pytest.raises(InvalidName):
                await b.registry.put_record("k", name, b"", 0)
        most = bounds.RECORD_VALUE_BYTES_MAX
        with pytest.raises(InvalidRequest):
            await b.registry.put_record("k", "n", bytes(most + 1), 0)
        for version in (-1, 1 << 64):
            with pytest.raises(InvalidRequest):
                await b.registry.put_record("k", "n", b"", version)
        assert b.registry.get_all_records("k") == []
        largest = await b.registry.put_record("k" * 63, "n" * 249, bytes(most), 0)
        assert b.registry.get_all_records("k" * 63) == [largest]

    run(scenario)


@pytest.mark.parametrize("bound", ["RECORDS_MAX", "RECORDS_BYTES_MAX"])
def test_records_are_bounded(run: Scenario, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(bounds, bound, {"RECORDS_MAX": 2, "RECORDS_BYTES_MAX": 20}[bound])

    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        first = await b.registry.put_record("k", "1", b"12345678", 0)
        second = await b.registry.put_record("k", "2", b"12345678", 0)
        with pytest.raises(QuotaExceeded):
            await b.registry.put_record("k", "3", b"1", 0)
        if bound == "RECORDS_BYTES_MAX":
            with pytest.raises(QuotaExceeded):
                await b.registry.put_record("k", "2", b"123456789", second.version)
        second = await b.registry.put_record("k", "2", b"1234", second.version)
        await b.registry.remove_record("k", "1", first.version)
        third = await b.registry.put_record("k", "3", b"12345678", 0)
        assert b.registry.get_all_records("k") == [second, third]

    run(scenario)


def test_records_wait_for_the_feature_level(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        assert b.registry.feature_level == 1
        version = b.registry.version
        with pytest.raises(UnsupportedVersion, match="needs feature level 2, and this cluster is at 1"):
            await b.registry.put_record("k", "n", b"", 0)
        assert b.registry.version == version, "nothing was proposed"
        await b.raise_level(2)
        assert b.registry.feature_level == 2
        assert b.effects[-1] == FeatureLevelRaised(2)
        await b.registry.put_record("k", "n", b"", 0)

    run(scenario)


def test_the_feature_level_is_raised_in_the_state_that_was_looked_at(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_broker(broker(1, feature_level=2))
        seen = b.registry.version
        await b.registry.register_broker(broker(2))
        assert [b.registry.announced_level(number) for number in (1, 2, 3)] == [2, 1, 1]
        with pytest.raises(VersionConflict):
            await b.registry.raise_feature_level(2, seen)
        with pytest.raises(InvalidRequest):
            await b.registry.raise_feature_level(99, b.registry.version)
        assert b.registry.feature_level == 1
        await b.registry.unregister_broker(1)
        await b.registry.unregister_broker(2)
        assert [b.registry.announced_level(number) for number in (1, 2)] == [2, 1], "what they announced last"
        await b.raise_level(2)
        version = b.registry.version
        for level in (1, 2):
            await b.registry.raise_feature_level(level, 0)
        assert (b.registry.feature_level, b.registry.version) == (2, version), "it never falls, and is raised once"

    run(scenario)


def test_a_broker_below_the_feature_level_is_not_registered(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.raise_level(2)
        with pytest.raises(UnsupportedVersion, match="broker 1 knows feature level 1, and this cluster is at 2"):
            await b.registry.register_broker(broker(1))
        assert b.registry.get_all_brokers() == []
        await b.registry.register_broker(broker(1, feature_level=2))
        assert b.registry.get_broker(1) == broker(1, feature_level=2)

    run(scenario)
