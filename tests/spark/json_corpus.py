"""Values and schemas for the comparison of JsonValues with from_json: every value is read with every schema."""

from __future__ import annotations

import random

import pyarrow as pa

DEEP = 990
LONG = 30_000

_TIME, _CLOCK = pa.timestamp("us", "UTC"), pa.timestamp("us")


def _four(*kinds: pa.DataType) -> pa.StructType:
    """Fields a to d, and the one of malformed values."""
    names = ("a", "b", "c", "d")
    given = kinds * 4 if len(kinds) == 1 else kinds
    return pa.struct([*zip(names, given, strict=True), ("_corrupt_record", pa.string())])


def _list(kind: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", kind))


def _map(kind: pa.DataType) -> pa.MapType:
    return pa.map_(pa.string(), kind)


SCHEMAS = {
    "wholes": _four(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    "reals": _four(pa.float32(), pa.float64(), pa.float64(), pa.float32()),
    "text": _four(pa.string()),
    "flags": _four(pa.bool_()),
    "decimals": _four(pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal128(5, 0), pa.decimal128(38, 0)),
    "dates": _four(pa.date32()),
    "times": _four(_TIME),
    "clocks": _four(_CLOCK),
    "bytes": _four(pa.binary()),
    "arrays": _four(_list(pa.int32()), _list(pa.string()), _list(_list(pa.float64())), _list(_TIME)),
    "structs": _four(
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        pa.struct([("x", pa.struct([("y", pa.date32())]))]),
        _list(pa.struct([("a", pa.int32()), ("b", pa.bool_())])),
        pa.struct([("z", _list(pa.int32())), ("w", pa.binary())]),
    ),
    "maps": _four(_map(pa.int32()), _map(pa.string()), _map(_list(pa.int32())), _map(pa.struct([("a", pa.int32())]))),
    "mixed": _four(pa.int64(), pa.string(), _TIME, pa.decimal128(20, 6)),
}
"""The types in Arrow; Spark's types correspond."""

DIFFERENCES = {
    "a syntax error within a field": (b"\\u12", b"{k:1}", b'{"k":1,}', b'{"k"}', b"[1 2]", b"[1,]"),
    "bytes that are not UTF-8, in the field of malformed values": (b"\xff", b'"\xc3"', b"\xf0\x9d\x84"),
    "half a surrogate pair, as UTF-8 bytes": (b"\xed\xa0\x80",),
}
"""Titles of the page's rows, with the content of values that JsonValues reads differently from from_json."""


def difference(value: bytes | None) -> str | None:
    """Return the known difference that a value shows."""
    for title, parts in DIFFERENCES.items():
        if value is not None and any(part in value for part in parts):
            return title
    return None


_TOKENS = (
    "1", "0", "-1", "127", "128", "200", "255", "256", "-128", "-129", "32767", "32768", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "123456789012345678901234567890", "1.0",
    "1.5", "-2.25", "0.1", "1e3", "1E-3", "1e400", "-1e400", "1e-400", "3.4e38", "3.5e38", "16777217",
    "9007199254740993", "1.10", "100.0", "1e7", "12345678.9", "1e-5", "0.001", "123456.789", "1.005", "2.675",
    "99999999.99", "99999999.995", "99999.5", "0.000000000000000001", "-0.0", "1e25", "00", "01", "+1", ".5", "5.",
    "1e", "NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF", "nan", "0x10", "1_000", "true", "false",
    "null", "True", "nul", "truex", "tru", '""', '" "', '"x"', '"1"', '"1.5"', '"-7"', '"+7"', '" 1"', '"1 "',
    '"1,234.50"', '"1e3"', '"1.005"', '"1_0"', '"٣"', '"true"', '"NaN"', '"Infinity"', '"+INF"', '"-INF"',
    '"-Infinity"', '"INF"', '"nan"', r'"tab\t nl\n quote\" back\\ slash\/ bell\b\f\r"', r'"ä"', '"ü€𝄞"', r'"𝄞"',
    r'"\ud834"', r'"\udd1e\ud834"', r'"\u0000"', r'"\x41"', r'"\u12"', r'"\'"', '"a\tb"', '"a\nb"', '"unended',
    "'single'", "'it\"s'", r"'it\'s'", '"2020-02-29"', '"2021-02-29"', '"2020-2-9"', '"2020-02"', '"2020"',
    '"20200229"', '"2020-02-29T12"', '"2020-02-29 "', '" 2020-02-29"', '"2020-02-29x"', '"2020/02/29"',
    '"0001-01-01"', '"0000-01-01"', '"1500-01-01"', '"1582-10-10"', '"+2020-01-01"', '"-0044-03-15"', '"10000-01-01"',
    '"12345"', '"123"', '"-5"', '"9999-12-31"', '"2020-01-01T00:00:00Z"', '"2020-01-01T00:00:00.123456Z"',
    '"2020-01-01 00:00:00.1234567Z"', '"2020-01-01T00:00:00.123456789"', '"2020-01-01 01:02:03"',
    '"2020-01-01 01:02:03.5"', '"2020-01-01T01:02"', '"2020-01-01T01:02Z"', '"2020-01-01T0102"', '"2020-01-01 01"',
    '"2020-01-01 1:2:3"', '"2020-01-01T24:00:00"', '"2020-01-01T23:59:60Z"', '"2020-01-01T00:00:00+01:00"',
    '"2020-01-01T00:00:00-08:00"', '"2020-01-01T00:00:00+0100"', '"2020-01-01T00:00:00+01"',
    '"2020-01-01T00:00:00+1:00"', '"2020-01-01T00:00:00+18:00"', '"2020-01-01T00:00:00+19:00"',
    '"2020-01-01T00:00:00+23:30"', '"2020-01-01T00:00:00 Europe/Paris"', '"2020-07-01T00:00:00Europe/Paris"',
    '"2020-03-29T02:30:00 Europe/Paris"', '"2020-10-25T02:30:00 Europe/Paris"', '"2020-01-01T00:00:00UTC"',
    '"2020-01-01T00:00:00 GMT+01:00"', '"2020-01-01T00:00:00PST"', '"2020-01-01T00:00:00 Mars/Olympus"',
    '"2020-01-01T00:00:00."', '"2020-01-01T00:00:00.Z"', '"1969-12-31T23:59:59.999999Z"', '"0001-01-01T00:00:00Z"',
    '"1890-01-01T00:00:00 Europe/Paris"', '"9999-12-31T23:59:59.999999Z"', '"294247-01-10T04:00:54.775807Z"',
    '"300000-01-01T00:00:00Z"', '"2020-01-01T00:00:00z"', '"now"', '"epoch"', '"2020-13-01"',
    '"2020-01-01T00:00:00+00:00:30"', '"QUI="', '"QUI"', '"QQ=="', '"Q Q = ="', '"QUJD"', '"Q*=="', '"____"', '"QQ="',
    "[]", "[1]", "[1,2,null]", '[1,"x",2]', "[1.5]", '["a",1,null,{"k":[1]}]', "[[1,2],[]]", '[[1,"x"],[2]]',
    "[[1.5],3]", '[1,{"a":5},2]', '["2020-01-01T00:00:00Z",null]', '["2020-01-01T00:00:00Z","x"]', "[1,]", "[1 2]",
    "[", "[1", '[{"a":1,"b":true},{"a":"x"},{}]', '[{"a":1},2]', '[{"a":{"b":1}}]', "{}", '{"a":1}', '{"a":"1"}',
    '{"a":1,"b":"x"}', '{"a":1,"a":2}', '{"a":"x","b":"kept"}', '{"b":5,"zzz":[1,{"a":2}]}',
    '{"x":{"y":"2020-01-01"}}', '{"x":{"y":5}}', '{"x":5}', '{"z":[1,2],"w":"QUI="}', '{"z":[1,"x"],"w":"QUI="}',
    '{"z":["x",{"z":[5]}],"w":"QUI="}', '{"k":null}', '{"k":1,"k":2}', '{"k":[1,null]}', '{"k":[1,"x"]}',
    '{"k":{"a":"x"}}', '{"k":1.50,"l":1e2,"m":"a\\"b\\u00e4\\n"}', '{ "k" : [ 1 , 2 ] }', "{'k':1}", '{"":1}',
    "{k:1}", '{"k":1,}', '{"k"}', "x", "", "/*c*/1", "undefined",
)  # fmt: skip

_TEMPLATES = ('{"a":%s,"b":"ok","c":7,"d":null}', '{"zzz":[{}],"a":%s}')

_WHOLE = (
    None, b"", b" ", b"\n", b"null", b"1", b"true", b'"text"', b"[]", b'[{"a":1}]', b"{", b"}", b"{}", b" {} ",
    b"{}{}", b'{"a":1}', b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":1},{"a":2}', b'{"a":1} trailing', b'{"a":1}}',
    b'{"a":1', b'{"a":1,', b'{"a"', b'{"a":', b'{"a":1,"b"', b'{"a" 1}', b'{"a":1 "b":2}', b"{,}", b'{"a":1,"b":}',
    b"{'a':1}", b"{'a':'x','b':\"y\"}", b'{"a":1,"a":"x"}', b'{"a":"x","a":1}', b'{"a":1,"A":2}', b'{"\\u0061":1}',
    b'{"zzz":1}', b'{"zzz":{"a":1},"a":2}', b'{"zzz":[1,2,{"q":"}{"}],"a":3}', b'{"a":"}{","b":"}\\n{"}',
    b'  {"a":1}', b'{"a":1}  ', b'\t\r\n{"a":1}', b'\xef\xbb\xbf{"a":1}', b"\x00", b'{"a":1}\x00', b'{\x00"a":1}',
    b'{"a":"x\x00y"}', b'{"a":1}\x00{}', b'{"a":"\xff"}', b'{"a":"\xc3"}', b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xf0\x9d\x84"}', b'{"\xff":1,"a":2}', b"\xff", b'{"a":"\xc3\xa4"}',
    b'{\n  "a": 1,\n  "b": "pretty",\n  "c": [\n    1\n  ]\n}', b'{"a":1, // c\n"b":2}',
    b'{"_corrupt_record":"mine","a":1}', b'{"b":"' + b"x" * LONG + b'"}', b'{"b":' + b"1" * 400 + b"}",
    b'{"zzz":' + b"[" * DEEP + b"]" * DEEP + b',"a":1}', b'{"zzz":' + b"[" * 1001 + b"]" * 1001 + b',"a":1}',
    b'{"b":' + b"[" * DEEP + b"]" * DEEP + b"}", b'{"a":\xc2\xa01}', b'{"a":1e99999}', b'{"a":1}#', b"-", b"\"",
    b"{]", b"[}",
)  # fmt: skip


def values() -> list[bytes | None]:
    """All values, in an order that mixes their kinds."""
    made = [(template % token).encode() for token in _TOKENS for template in _TEMPLATES]
    mixed = [*made, *_WHOLE]
    random.Random(7).shuffle(mixed)
    return mixed


def plain(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with times as integers and texts as bytes, so that values without a Python form compare too."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), plain(kind.item_type))
    return kind
