"""Offsets as text: the written form is canonical, and only that form is read."""

from __future__ import annotations

import json

import pytest

from pyspark_tinymq.options import offsets
from pyspark_tinymq.options.offsets import Partition, StreamOffset, initial, read_stream

A0, A2, A10, B0 = Partition("a", 0), Partition("a", 2), Partition("a", 10), Partition("b", 0)


def test_equal_offsets_are_equal_texts() -> None:
    one = StreamOffset({B0: 5, A10: 1, A2: 3}, {"b": "02", "a": "01"})
    other = StreamOffset({A2: 3, A10: 1, B0: 5}, {"a": "01", "b": "02"})
    assert json.dumps(one.write()) == json.dumps(other.write())
    assert json.dumps(one.write()) == '{"a": {"2": 3, "10": 1}, "b": {"0": 5}, "@ids": {"a": "01", "b": "02"}}'


@pytest.mark.parametrize(
    "offset",
    [
        StreamOffset({A0: 0}),
        StreamOffset({A0: 7, B0: 1 << 60}, {"a": "01", "b": "02"}),
        StreamOffset({A0: 7}, {"a": "01"}, first={A0: 3}),
        StreamOffset({A0: 7}, {"a": "01"}, initial=True),
        StreamOffset({}, initial=True),
        StreamOffset({}, first={}),
        StreamOffset({}),
    ],
)
def test_schemas_stored_by_spark_are_read(offset: StreamOffset) -> None:
    written = json.loads(json.dumps(offset.write()))
    assert read_stream(written) == offset
    assert json.dumps(read_stream(written).write()) == json.dumps(written)


def test_the_first_batch_says_where_it_began() -> None:
    """A later offset differs; an equal offset is the same text."""
    begin = initial({A0: 3}, {"a": "01"})
    end = begin.following({A0: 9}, {"a": "01"})
    assert end == StreamOffset({A0: 9}, {"a": "01"}, first={A0: 3})
    assert end.following({A0: 9}, {"a": "01"}) is end
    assert end.following({A0: 10}, {"a": "01"}) == StreamOffset({A0: 10}, {"a": "01"})
    assert begin.following({A0: 3}, {"a": "01"}) == StreamOffset({A0: 3}, {"a": "01"}, first={A0: 3})


def test_a_streams_offset_can_be_started_from() -> None:
    """The form in a query's progress."""
    text = json.dumps(StreamOffset({A0: 9}, {"a": "01"}, first={A0: 3}).write())
    assert offsets.read_place(text) == {A0: 9}
    assert offsets.read_place(offsets.write_offsets({A0: 9, A10: 2})) == {A0: 9, A10: 2}


def test_an_offset_without_partitions_is_none_to_start_from() -> None:
    """A stream has an empty offset while no topic matches its pattern, or all are deleted."""
    with pytest.raises(ValueError, match="no partition is named"):
        offsets.read_place("{}")


@pytest.mark.parametrize("text", ['{"a":{}}', '{"a":{"0":null}}', '{"a":1}', "7", "[]", '{"a":{"0":"1"}}'])
def test_what_no_offset_is(text: str) -> None:
    with pytest.raises((ValueError, AttributeError)):
        read_stream(json.loads(text))
    with pytest.raises(ValueError, match=r".*"):
        offsets.read_place(text)


def test_partitions_are_named_in_order() -> None:
    assert offsets.read_assignment('{"b":[0],"a":[10,2]}') == (A2, A10, B0)
    assert offsets.first_few([B0, A10, A2], most=2) == "a/2, a/10 and 1 more"
