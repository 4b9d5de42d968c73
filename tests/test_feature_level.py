"""The tables of the feature level name everything that can be proposed or sent, and the gate uses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinymq.base.errors import UnsupportedVersion
from tinymq.format import feature_level
from tinymq.format.entry import ENTRY_VERSION, Kind, NewEntry, make_entry, takes_producer_numbers
from tinymq.format.feature_level import ENTRIES, FIRST_LEVEL, KNOWN_LEVEL
from tinymq.format.transactional import MADE_VERSION
from tinymq.proto import partition_pb2, peer_pb2, registry_pb2, transaction_pb2

FIRST_KINDS = {Kind.NOOP, Kind.CONFIG, Kind.DATA, Kind.COMMAND}  # of the base build

# Everything of the base build. Nothing is ever added to level 1, because that build does not know it.
FIRST = {
    "REGISTRY_COMMANDS": """register_broker unregister_broker create_topic delete_topic take_producer_ids alter_topic
        create_queue delete_queue set_consumer unset_consumer""",
    "PARTITION_COMMANDS": "open commit seek delete consume move_start hold release",
    "TRANSACTION_COMMANDS": "",
    "PEER_MESSAGES": """heartbeat request_vote vote append append_ack commit_notice timeout_now leaders request reply
        install_snapshot snapshot_chunk install_snapshot_ack here""",
}


def names(message: type, oneof: str) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "there"),
    [
        ("REGISTRY_COMMANDS", names(registry_pb2.Command, "command")),
        ("PARTITION_COMMANDS", names(partition_pb2.Command, "command")),
        ("TRANSACTION_COMMANDS", names(transaction_pb2.TransactionCommand, "command")),
        ("PEER_MESSAGES", names(peer_pb2.Peer, "message")),
    ],
)
def test_everything_has_a_level(table: str, there: set[str]) -> None:
    levels: dict[str, int] = getattr(feature_level, table)
    assert set(levels) == there, (
        f"enter it in tinymq/format/feature_level.py, {table}, and propose it only from that level on"
    )
    assert set(levels.values()) <= set(range(FIRST_LEVEL, KNOWN_LEVEL + 1))
    assert {name for name, level in levels.items() if level == FIRST_LEVEL} == set(FIRST[table].split())


def test_every_kind_of_entry_has_a_level() -> None:
    assert set(ENTRIES) == set(Kind)
    for kind, versions in ENTRIES.items():
        assert (versions[ENTRY_VERSION] == FIRST_LEVEL) == (kind in FIRST_KINDS)
        assert sorted(versions.values()) == list(versions.values()) == sorted(set(versions.values()))
        for version, level in versions.items():
            assert FIRST_LEVEL <= level <= KNOWN_LEVEL
            assert feature_level.entry_version(kind, level) == version
    for level in feature_level.REGISTRY_COMMANDS.values():
        assert feature_level.entry_level(Kind.COMMAND, feature_level.entry_version(Kind.COMMAND, level)) == level


def test_a_new_item_joins_a_level_that_no_release_has() -> None:
    changes = (Path(__file__).resolve().parent.parent / "CHANGELOG.md").read_text()
    released = [title for title in re.findall(r"^## (.+)", changes, re.MULTILINE) if "unreleased" not in title]
    assert (feature_level.RELEASED_LEVEL == 0) == (not released), "a release sets RELEASED_LEVEL to its KNOWN_LEVEL"
    assert feature_level.RELEASED_LEVEL <= KNOWN_LEVEL


def test_every_stored_batch_says_whether_it_takes_its_producers_numbers() -> None:
    def takes(kind: int, version: int) -> bool:
        entry = make_entry(
            NewEntry(kind, b"", version=version), index=1, term=1, prev_crc=0, base_offset=0, append_time_us=0
        )
        return takes_producer_numbers(entry.header)

    stored = {(kind, version) for kind, versions in ENTRIES.items() for version in versions}
    assert {item for item in stored if takes(*item)} == {(Kind.DATA, 1), (Kind.STAGED, 1)}
    for kind, version in ((Kind.DATA, MADE_VERSION), (Kind.DATA, 99), (Kind.STAGED, 99)):
        with pytest.raises(UnsupportedVersion, match=f"kind {kind}, version {version}"):
            takes(kind, version)


def test_no_stored_data_has_the_version_of_frames_made_for_readers() -> None:
    assert MADE_VERSION not in ENTRIES[Kind.DATA]


def test_an_item_without_a_table_entry_passes_no_gate() -> None:
    for kind, version in [(Kind.PUBLISH, 3), (Kind.DATA, 99), (99, 1), (Kind.COMMAND, 0)]:
        assert not feature_level.knows_entry(kind, version)
        with pytest.raises(UnsupportedVersion):
            feature_level.check("it", feature_level.entry_level(kind, version), KNOWN_LEVEL)


def test_a_refusal_names_both_levels_and_what_to_do() -> None:
    with pytest.raises(UnsupportedVersion, match="a thing needs feature level 2, and this cluster is at 1") as refused:
        feature_level.check("a thing", 2, 1)
    assert "tinymq cluster feature-level show" in refused.value.hint
    feature_level.check("a thing", 2, 2)


def test_the_page_names_the_level_of_this_build_and_each_level_before() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "operations.md").read_text()
    assert f"This build knows level {KNOWN_LEVEL}." in page
    rows = page.partition("| feature level | adds |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\d+) \|", rows, re.MULTILINE) == [str(level) for level in range(1, KNOWN_LEVEL + 1)]
