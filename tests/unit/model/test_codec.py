"""Payloads that are encoded many at a time: the same bytes as one by one, and nothing that one alone would not be."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Code, Int64, ObjectId

import mongoq
from mongoq.model.encoding import codec
from mongoq.model.encoding.codec import SIZE_LIMIT, Codec, Encoding, codec_options

ENCODING = Encoding(codec_options())
VALUES: list[Any] = [
    {"order": 1, "lines": [{"n": 1}, {}]},
    {},
    [],
    None,
    True,
    7,
    Int64(7),
    2**40,
    1.5,
    "",
    "with \0 in it",
    b"\0" * 20,
    ObjectId("0" * 24),
    UUID(int=1),
    datetime(2024, 1, 1, tzinfo=UTC),
    [1, [2, {"a.b": "$c"}]],
    {"_id": 1, "b": 2},
    {"b": 2, "_id": 1},
    "x" * codec.SMALL_VALUE_BYTES,
    {"": {"": {"": 0}}},
]


def wrapped(values: list[Any], limit: int = SIZE_LIMIT) -> list[bytes]:
    return ENCODING.wrap_many("payload", values, limit=limit)


@pytest.mark.parametrize("times", [1, 30])
def test_many_values_become_the_bytes_of_each(times: int) -> None:
    values = VALUES * times
    alone = [ENCODING.wrap("payload", value, limit=SIZE_LIMIT) for value in values]
    assert wrapped(values) == alone
    assert alone[0] == bson.encode({"payload": VALUES[0]})


def test_none_are_none() -> None:
    assert wrapped([]) == []


@pytest.mark.parametrize("number", [1, 2, 101, 102])
def test_small_ones_go_together_and_large_ones_alone(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    encode, sizes = bson.encode, []

    def recording_encode(document: Any, **options: Any) -> bytes:
        sizes.append(len(document[""]))
        return encode(document, **options)

    monkeypatch.setattr(bson, "encode", recording_encode)
    wrapped(["small"] * number)
    assert sizes == {1: [1], 2: [1, 1], 101: [1, 100], 102: [1, 100, 1]}[number]
    sizes.clear()
    wrapped(["x" * 20_000] * number)
    assert sizes == [1] * number


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        2**64,
        "\ud800",
        datetime(2024, 1, 1),
        re.compile("a"),
        {1: 2},
        {"a": [Code("c", {"d": {1, 2}})]},
        {"$ref": 1, "$id": 2},
    ],
)
def test_one_bad_value_among_many_refuses_them_all(bad: Any) -> None:
    for values in ([bad], [*VALUES, bad], [*VALUES, bad, *VALUES]):
        with pytest.raises(mongoq.PayloadInvalid):
            wrapped(values)


def test_one_large_value_among_many_is_measured_by_itself() -> None:
    assert len(wrapped(["x" * 100] * 50, limit=200)) == 50
    with pytest.raises(mongoq.PayloadTooLarge, match="519"):
        wrapped(["x" * 100, "x" * 500, "x" * 100], limit=200)


def test_payloads_that_were_encoded_before_are_for_one_at_a_time() -> None:
    payloads = Codec[Any](ENCODING)
    before = codec.Wrapped(payloads.wrap(1))
    assert payloads.wrap(before) == before.raw
    with pytest.raises(mongoq.PayloadInvalid):
        payloads.wrap_many([before])
