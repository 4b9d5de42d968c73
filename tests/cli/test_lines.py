"""The pure parts of produce and consume: lines to records, and records to lines."""

from __future__ import annotations

import io
import json

import pytest

from tinymq import Message
from tinymq.base.errors import BatchTooLarge, InvalidRequest
from tinymq.cli.verbs import produce
from tinymq.cli.verbs.consume import as_json

PLACE = ("words.txt", 17)


def test_a_fixed_key() -> None:
    assert produce.splitter("k", None)(b"a:b", PLACE) == (b"k", b"a:b")
    assert produce.splitter(None, None)(b"a:b", PLACE) == (None, b"a:b")


def test_the_key_is_before_the_first_separator() -> None:
    split = produce.splitter(None, ":")
    assert split(b"a:b:c", PLACE) == (b"a", b"b:c")
    assert split(b":b", PLACE) == (b"", b"b")
    with pytest.raises(InvalidRequest):
        produce.splitter(None, "")


@pytest.mark.parametrize(
    ("separator", "mark"),
    [(r"\t", b"\t"), ("\t", b"\t"), (r"\0", b"\0"), (r"\x1F", b"\x1f"), (r"\xff", b"\xff"), (r"a\\n", b"a\\n")],
)
def test_escapes_in_a_separator_are_its_bytes(separator: str, mark: bytes) -> None:
    assert produce.splitter(None, separator)(b"k" + mark + b"v", PLACE) == (b"k", b"v")


@pytest.mark.parametrize("separator", [r"\q", r"\x4", r"\xg0", "\\"])
def test_unknown_escapes_name_the_known_ones(separator: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        produce.splitter(None, separator)
    assert "known" in raised.value.hint


def test_a_line_without_the_separator_has_no_key_only_with_key_optional() -> None:
    assert produce.splitter(None, ":", optional=True)(b"b", PLACE) == (None, b"b")
    with pytest.raises(InvalidRequest, match=r"line 17 of words\.txt has no key separator \(:\)") as raised:
        produce.splitter(None, ":")(b"b", PLACE)
    assert "--key-optional" in raised.value.hint


def test_only_line_ends_are_removed() -> None:
    lines = produce.without_ends(io.BytesIO(b"a\r\n b \n\nc\r"))
    assert list(lines) == [b"a\r", b" b ", b"", b"c\r"]


def test_an_endless_line_is_not_read_in_full() -> None:
    """/dev/zero is such a file."""
    assert list(produce.without_ends(io.BytesIO(b"1234\n123\n"), 4)) == [b"1234", b"123"]
    endless = io.BytesIO(b"1\n" + bytes(100))
    lines = produce.without_ends(endless, 4)
    assert next(lines) == b"1"
    with pytest.raises(BatchTooLarge):
        next(lines)
    assert endless.tell() == 7


def test_headers() -> None:
    assert produce.parse_headers(["a=1", "a=", "b=x=y"]) == [("a", b"1"), ("a", b""), ("b", b"x=y")]
    for wrong in ("a", "=1"):
        with pytest.raises(InvalidRequest):
            produce.parse_headers([wrong])


def test_a_record_as_json() -> None:
    time = 1_357_034_400_000_000
    record = Message(
        topic="t",
        partition=1,
        offset=2,
        key=None,
        value="é".encode(),
        headers=(("h", b"\xff"),),
        timestamp_us=time,
        leader_epoch=1,
    )
    assert json.loads(as_json(record)) == {
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "timestamp": "2013-01-01T10:00:00Z",
        "key": None,
        "value": "é",
        "headers": [{"name": "h", "value_base64": "/w=="}],
    }
    assert json.loads(as_json(record._replace(key=b"\xfe")))["key_base64"] == "/g=="
