"""The format language of `tinymq consume`."""

from __future__ import annotations

import pytest

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.template import Shown, compile_template

RECORD = Shown("t1", 3, 42, 1_357_034_400_000_000, b"UA9", b"v\xff", [("a", b"1"), ("a", None)])


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


def test_what_is_shown_otherwise_is_of_the_record_alone() -> None:
    show = compile_template(r"%t %k %v %h\x1b%p\n", bytes.upper)
    assert show(RECORD) == b"T1 UA9 V\xff A=1,A=\x1b3\n"


def test_null_key_and_value_are_nothing() -> None:
    assert compile_template("[%k][%v]")(Shown("t", 0, 0, RECORD.timestamp_us, None, None, [])) == b"[][]"


@pytest.mark.parametrize("text", ["%x", "%", "\\", r"\q", r"%\n", r"\x2"])
def test_unknown_letters_name_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        compile_template(text)
    assert "known" in raised.value.hint
