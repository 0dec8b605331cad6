"""Payloads that are encoded many at a time: one that alone would be refused is refused among others."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Code, Int64, ObjectId

import mongoq
from mongoq.testing import VirtualBroker

GOOD: list[Any] = [
    {"order": 1, "lines": [{"n": 1}, {}]},
    {},
    None,
    7,
    Int64(7),
    "with \0 in it",
    b"\0" * 20,
    ObjectId("0" * 24),
    datetime(2024, 1, 1, tzinfo=UTC),
    [1, [2, {"a.b": "$c"}]],
    {"b": 2, "_id": 1},
    "x" * 20_000,
    {"": {"": {"": 0}}},
]


def test_many_payloads_are_stored_as_each_alone() -> None:
    with VirtualBroker() as broker:
        many, alone = broker.queue("many"), broker.queue("alone")
        many.push_many(GOOD * 10)
        for payload in GOOD:
            alone.push(payload)
        assert [item.payload for item in many.peek(200)] == [item.payload for item in alone.peek(200)] * 10


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (object(), mongoq.PayloadInvalid),
        (2**64, mongoq.PayloadInvalid),
        ("\ud800", mongoq.PayloadInvalid),
        (datetime(2024, 1, 1), mongoq.PayloadInvalid),
        (re.compile("a"), mongoq.PayloadInvalid),
        ({1: 2}, mongoq.PayloadInvalid),
        ({"a": [Code("c", {"d": {1, 2}})]}, mongoq.PayloadInvalid),
        ({"$ref": 1, "$id": 2}, mongoq.PayloadInvalid),
        ("x" * 17_000_000, mongoq.PayloadTooLarge),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_bad_payload_among_many_refuses_them_all(bad: Any, error: type[Exception]) -> None:
    with VirtualBroker() as broker:
        for payloads in ([bad], [*GOOD, bad], [*GOOD, bad, *GOOD]):
            with pytest.raises(error):
                broker.queue("orders").push_many(payloads)
        assert broker.queue("orders").size() == 0
