"""The `-f` format of `tinymq consume`."""

from __future__ import annotations

import pytest

from tinymq import Message
from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.template import compile_template

RECORD = Message(
    topic="t1",
    partition=3,
    offset=42,
    key=b"UA9",
    value=b"v\xff",
    headers=(("a", b"1"), ("a", None)),
    timestamp_us=1_357_034_400_000_000,
    leader_epoch=1,
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%p %o %k %v\n", b"3 42 UA9 v\xff\n"),
        ("%t|%T", b"t1|2013-01-01T10:00:00Z"),
        ("%h", b"a=1,a="),
        (r"100%%\t\\\0é", b"100%\t\\\0\xc3\xa9"),
        (r"\x25v\xfF", b"%v\xff"),
        ("", b""),
    ],
)
def test_formats(text: str, printed: bytes) -> None:
    assert compile_template(text)(RECORD) == printed


def test_only_the_bytes_of_the_record_are_escaped() -> None:
    show = compile_template(r"%t %k %v %h\x1b%p\n", bytes.upper)
    assert show(RECORD) == b"T1 UA9 V\xff A=1,A=\x1b3\n"


def test_null_keys_and_values_print_nothing() -> None:
    assert compile_template("[%k][%v]")(RECORD._replace(key=None, value=None)) == b"[][]"


@pytest.mark.parametrize("text", ["%x", "%", "\\", r"\q", r"%\n", r"\x2"])
def test_an_unknown_field_is_refused_with_the_known_fields(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        compile_template(text)
    assert "known" in raised.value.hint
