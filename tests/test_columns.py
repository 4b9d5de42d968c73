"""Columns that are built from buffers equal those of `pa.array`, and refuse what is no record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.format.columns import (
    BINARY,
    HEADERS,
    STRING,
    TIMESTAMP,
    binary_column,
    headers_column,
    int64_scalar,
    no_headers,
    time_column,
)

contents = st.lists(st.none() | st.binary(max_size=20), max_size=40)
headers = st.lists(st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))), max_size=20)


@given(contents, headers, st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20))
@settings(max_examples=100, deadline=None)
def test_a_column_equals_the_one_that_arrow_makes(values: list[Any], rows: list[Any], times: list[int]) -> None:
    for column, expected in (
        (binary_column(values), pa.array(values, BINARY)),
        (time_column(times), pa.array(times, TIMESTAMP)),
        (headers_column(rows), pa.array([r and [{"key": k, "value": v} for k, v in r] for r in rows], HEADERS)),
    ):
        column.validate(full=True)
        assert column.equals(expected)
        assert column.null_count == expected.null_count


REFUSED: dict[str, Any] = {
    "text as a value": lambda: binary_column(["a"]),  # type: ignore[list-item]
    "a number as a value": lambda: binary_column([None, 1]),  # type: ignore[list-item]
    "items of two bytes": lambda: binary_column([memoryview(b"abcd").cast("h")]),  # type: ignore[list-item]
    "no time": lambda: time_column([None]),  # type: ignore[list-item]
    "a time beyond 64 bits": lambda: time_column([1 << 63]),
    "a header's value as text": lambda: headers_column([[("a", "b")]]),  # type: ignore[list-item]
    "no key of a header": lambda: headers_column([[(None, b"")]]),  # type: ignore[list-item]
    "bytes as a header's key": lambda: headers_column([[(b"a", b"")]]),  # type: ignore[list-item]
    "three parts of a header": lambda: headers_column([[("a", b"", b"")]]),  # type: ignore[list-item]
    "a lone surrogate": lambda: headers_column([[("\ud800", b"")]]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_refuses_what_is_no_record(case: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        REFUSED[case]()


def test_a_scalar_has_its_value() -> None:
    assert int64_scalar(-(1 << 63)).equals(pa.scalar(-(1 << 63), pa.int64()))


def test_a_column_of_text_is_text() -> None:
    assert binary_column([b"a", None], STRING).to_pylist() == ["a", None]


@pytest.mark.parametrize("rows", [0, 1, 9, 300])
def test_records_without_headers_have_null_headers(rows: int) -> None:
    no_headers(rows).validate(full=True)
    assert no_headers(rows).equals(pa.nulls(rows, HEADERS))
