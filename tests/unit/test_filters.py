"""Filters on payloads: what they find, and what is refused."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from bson import Regex

import mongoq
from mongoq.testing import VirtualBroker

PAYLOADS: list[Any] = [
    {"a": 1},
    {"a": [1, 2, {"n": 1, "m": {"k": 3}}]},
    {"a": {"x": 1}},
    {"a": {"x": {"$gt": 1}}},
    {"a": "$x", "b": {"c": ["Xyz"]}},
    {"a": None, "q": 2, "payload": 1, "_id": 3},
    7,
    "x",
    {"b": 2},
]
FOUND: list[tuple[Any, list[int]]] = [
    ({"a": 1}, [0, 1]),
    ({"a.x": 1}, [2]),
    ({"a": {"x": 1}}, [2]),
    ({"a": {"x": {"$gt": 1}}}, [3]),
    ({"a": {"$eq": {"x": {"$gt": 1}}}}, [3]),
    ({"a": "$x"}, [4]),
    ({"b.c.0": {"$regex": "^x", "$options": "i"}}, [4]),
    ({"a": {"$in": ["$x", 1]}}, [0, 1, 4]),
    ({"a": {"$nin": ["$x", 1]}, "q": 2}, [5]),
    ({"a": {"$gt": 0, "$lte": 1}}, [0, 1]),
    ({"a": {"$all": (1, 2)}}, [1]),
    ({"a": {"$size": 3}}, [1]),
    ({"a": {"$mod": [4, 2]}}, [1]),
    ({"a": {"$not": {"$gte": 2}}, "a.x": {"$ne": 1}}, [0, 3, 4, 5, 6, 7, 8]),
    ({"a": {"$elemMatch": {"$gt": 1, "$lt": 3}}}, [1]),
    ({"a": {"$elemMatch": {"n": 1, "m.k": {"$gt": 2}}}}, [1]),
    ({"a": {"$elemMatch": {"$or": [{"n": 1}, {"n": 5}]}}}, [1]),
    ({"a": {"$type": ["string", 10]}}, [4, 5]),
    ({"a": {"$exists": False}}, [6, 7, 8]),
    ({"$or": [{"b": 2}, {"$and": [{"a": None}, {"q": 2}]}]}, [5, 8]),
    ({"$nor": [{"a": {"$exists": True}}], "b": 2}, [8]),
    ({"$gt": 3}, [6]),
    ({"$or": [{"$eq": "x"}, {"$type": "int"}]}, [6, 7]),
    ({"payload": 1, "q": 2, "_id": 3}, [5]),
]
"""Filters, and the places of the payloads that each finds."""


def test_a_filter_is_about_the_payload_and_its_values_are_literal(broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    ids = orders.push_many(PAYLOADS)
    found = [(where, [ids.index(item.id) for item in orders.history(state="ready", where=where)]) for where, _ in FOUND]
    assert found == FOUND


FORBIDDEN = ("$where", "$expr", "$function", "$jsonSchema", "$text", "$near", "$comment", "$geoWithin", "$bitsAllSet")

WRONG: list[tuple[Any, str]] = [
    ("a", "where"),
    ({}, "where"),
    ({1: 2}, "where"),
    ({"": 1}, "where"),
    ({"a.": 1}, "where"),
    ({"a.$b": 1}, "where"),
    ({"a\0b": 1}, "where"),
    ({"\ud800": 1}, "where"),
    *[({operator: {"a": 1}}, "where") for operator in FORBIDDEN],
    *[({"a": {operator: 1}}, "where.a") for operator in FORBIDDEN],
    ({"a": {"$not": {"$where": 1}}}, "where.a.$not"),
    ({"a": {"$elemMatch": {"$where": 1}}}, "where.a.$elemMatch"),
    ({"$or": [{"b": 1}, {"$where": 1}]}, "where.$or[1]"),
    ({"a": {"$gt": 1, "b": 2}}, "where.a"),
    ({"a": {"b": 2, "$gt": 1}}, "where.a"),
    ({"a": {"$or": [{"b": 1}]}}, "where.a"),
    ({"$or": []}, "where.$or"),
    ({"$and": [{}]}, "where.$and[0]"),
    ({"a": {"$in": "abc"}}, "where.a.$in"),
    ({"a": {"$in": [1, {"$x": 1}]}}, "where.a.$in[1]"),
    ({"a": {"$all": [{"$elemMatch": {"x": 1}}]}}, "where.a.$all[0]"),
    ({"a": {"$in": [re.compile("x")]}}, "where.a.$in[0]"),
    ({"a": Regex("x")}, "where.a"),
    ({"a": {"$exists": 1}}, "where.a.$exists"),
    ({"a": {"$type": "text"}}, "where.a.$type"),
    ({"a": {"$type": []}}, "where.a.$type"),
    ({"a": {"$regex": 1}}, "where.a.$regex"),
    ({"a": {"$regex": "a\0b"}}, "where.a.$regex"),
    ({"a": {"$regex": "x" * 40_000}}, "where.a.$regex"),
    ({"a": {"$regex": "x", "$options": "g"}}, "where.a.$options"),
    ({"a": {"$options": "i"}}, "where.a.$options"),
    ({"a": {"$size": -1}}, "where.a.$size"),
    ({"a": {"$mod": [0, 1]}}, "where.a.$mod"),
    ({"a": {"$mod": [2, 2**63]}}, "where.a.$mod"),
    ({"a": {"$not": 3}}, "where.a.$not"),
    ({"a": {"$elemMatch": {"$gt": 1, "b": 1}}}, "where.a.$elemMatch"),
    ({"a": {"$elemMatch": {"$or": [{"$gt": 1}]}}}, "where.a.$elemMatch.$or[0]"),
    ({"a": datetime(2024, 1, 1)}, "where.a"),
    ({"a": {"b": [object()]}}, "where.a.b[0]"),
    ({"a": {"$gt": {1, 2}}}, "where.a.$gt"),
    ({"a": "x" * 1_100_000}, "where.a"),
    ({"a": "x" * 700_000, "b": "y" * 700_000}, "where"),
]


def _refused(where: Any) -> mongoq.FilterInvalid:
    with VirtualBroker() as broker, pytest.raises(mongoq.FilterInvalid) as caught:
        list(broker.queue("orders").history(where=where))
    assert isinstance(caught.value, mongoq.ArgumentInvalid)
    return caught.value


def test_a_filter_off_the_safe_list_is_refused_and_the_place_is_named() -> None:
    assert [(where, _refused(where).argument) for where, _ in WRONG] == WRONG
    error = _refused({"a" * 5000: {"$where": "1"}})
    assert "not one of" in str(error)
    assert len(error.argument) < 200, "a long path hides the reason"


def test_nesting_is_bounded(broker: mongoq.Broker) -> None:
    def nested(depth: int) -> Any:
        where: Any = {"a": 1}
        for _ in range(depth):
            where = {"$or": [where]}
        return where

    assert list(broker.queue("orders").history(where=nested(19))) == []
    negated: Any = {"$gt": 1}
    for _ in range(400):
        negated = {"$not": negated}
    for wrong in (nested(20), nested(400), {"a": negated}):
        assert "nested deeper" in str(_refused(wrong))
