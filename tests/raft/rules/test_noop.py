"""The time in a NOOP, as bytes."""

from __future__ import annotations

import pytest

from tinymq.raft.rules.noop import NoopNote, pack_noop, parse_noop


@pytest.mark.parametrize("note", [NoopNote(), NoopNote(False, 0), NoopNote(True, 1), NoopNote(True, 2**63)])
def test_a_note_survives_packing(note: NoopNote) -> None:
    assert parse_noop(pack_noop(note)) == note


def test_the_bytes_of_earlier_versions_and_of_later_ones() -> None:
    assert pack_noop(NoopNote()) == b"", "as in every NOOP of earlier versions"
    assert pack_noop(NoopNote(False, 0)).hex() == "010000000000000000"
    assert pack_noop(NoopNote(True, 258)).hex() == "000201000000000000"
    assert parse_noop(b"something longer than that") == NoopNote()
