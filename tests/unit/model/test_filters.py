"""Filters on payloads: what is sent for what was asked, and what is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId, Regex

import mongoq
from mongoq.model.encoding.codec import Encoding, codec_options
from mongoq.model.filters import LOGICAL, NESTING_LIMIT, OPERATORS, where_filter

NOW = datetime(2024, 1, 1, tzinfo=UTC)
ID = ObjectId("65920080aaaaaaaaaaaaaaaa")


def as_server_reads(where: Any) -> Any:
    """Return the filter as the server reads it."""
    return bson.decode(bson.encode(where_filter(where, Encoding(codec_options()))), codec_options())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"a": 1}, {"payload.a": {"$eq": 1}}),
        ({"a.b.0": "$x"}, {"payload.a.b.0": {"$eq": "$x"}}),
        ({"a": None}, {"payload.a": {"$eq": None}}),
        ({"a": {}}, {"payload.a": {"$eq": {}}}),
        ({"a": {"x": 1}}, {"payload.a": {"$eq": {"x": 1}}}),
        ({"a": {"x": {"$gt": 1}}}, {"payload.a": {"$eq": {"x": {"$gt": 1}}}}),
        ({"a": {"$eq": {"$gt": 1}}}, {"payload.a": {"$eq": {"$gt": 1}}}),
        ({"a": [1, {"$where": "1"}]}, {"payload.a": {"$eq": [1, {"$where": "1"}]}}),
        ({"a": (1, 2)}, {"payload.a": {"$eq": [1, 2]}}),
        ({"a": {"$gt": 1, "$lte": 5}}, {"payload.a": {"$gt": 1, "$lte": 5}}),
        (
            {"a": {"$ne": ID}, "b": {"$lt": Decimal128("1.5")}},
            {"payload.a": {"$ne": ID}, "payload.b": {"$lt": Decimal128("1.5")}},
        ),
        ({"a": {"$in": ["$x", 2, None]}}, {"payload.a": {"$in": ["$x", 2, None]}}),
        ({"a": {"$nin": []}}, {"payload.a": {"$nin": []}}),
        ({"a": {"$all": [1, {"x": 1}]}}, {"payload.a": {"$all": [1, {"x": 1}]}}),
        ({"a": {"$exists": False}}, {"payload.a": {"$exists": False}}),
        ({"a": {"$type": "string"}}, {"payload.a": {"$type": ["string"]}}),
        ({"a": {"$type": ["int", 18]}}, {"payload.a": {"$type": ["int", 18]}}),
        ({"a": {"$regex": "^x", "$options": "i"}}, {"payload.a": {"$regex": "^x", "$options": "i"}}),
        ({"a": {"$size": 0}}, {"payload.a": {"$size": 0}}),
        ({"a": {"$mod": [4, -1]}}, {"payload.a": {"$mod": [4, -1]}}),
        ({"a": {"$not": {"$gt": 3}}}, {"payload.a": {"$not": {"$gt": 3}}}),
        ({"a": {"$elemMatch": {"$gt": 1, "$lt": 3}}}, {"payload.a": {"$elemMatch": {"$gt": 1, "$lt": 3}}}),
        (
            {"a": {"$elemMatch": {"n": 1, "m.k": {"$gt": 2}}}},
            {"payload.a": {"$elemMatch": {"n": {"$eq": 1}, "m.k": {"$gt": 2}}}},
        ),
        ({"a": {"$elemMatch": {"$or": [{"n": 1}]}}}, {"payload.a": {"$elemMatch": {"$or": [{"n": {"$eq": 1}}]}}}),
        (
            {"$or": [{"a": 1}, {"$and": [{"b": 2}]}]},
            {"$or": [{"payload.a": {"$eq": 1}}, {"$and": [{"payload.b": {"$eq": 2}}]}]},
        ),
        ({"$nor": [{"a": 1}], "b": 2}, {"$nor": [{"payload.a": {"$eq": 1}}], "payload.b": {"$eq": 2}}),
        ({"$gt": 3}, {"payload": {"$gt": 3}}),
        (
            {"$or": [{"$eq": "x"}, {"$type": "int"}]},
            {"$or": [{"payload": {"$eq": "x"}}, {"payload": {"$type": ["int"]}}]},
        ),
        (
            {"payload": 1, "q": 2, "_id": 3},
            {"payload.payload": {"$eq": 1}, "payload.q": {"$eq": 2}, "payload._id": {"$eq": 3}},
        ),
    ],
)
def test_a_filter_is_about_the_payload_and_its_values_are_literal(where: Any, expected: Any) -> None:
    assert as_server_reads(where) == expected


def nested(depth: int) -> Any:
    where: Any = {"a": 1}
    for _ in range(depth):
        where = {"$or": [where]}
    return where


FORBIDDEN = ("$where", "$expr", "$function", "$jsonSchema", "$text", "$near", "$comment", "$geoWithin", "$bitsAllSet")

WRONG: list[tuple[Any, str]] = [
    ("a", "where"),
    ([], "where"),
    ({}, "where"),
    ({1: 2}, "where"),
    ({"": 1}, "where"),
    ({"a.": 1}, "where"),
    ({".a": 1}, "where"),
    ({"a..b": 1}, "where"),
    ({"a.$b": 1}, "where"),
    ({"a\0b": 1}, "where"),
    ({"\ud800": 1}, "where"),
    *[({operator: {"a": 1}}, "where") for operator in FORBIDDEN],
    *[({"a": {operator: 1}}, "where.a") for operator in FORBIDDEN],
    *[({"a": {"$not": {operator: 1}}}, "where.a.$not") for operator in FORBIDDEN],
    *[({"a": {"$elemMatch": {operator: 1}}}, "where.a.$elemMatch") for operator in FORBIDDEN],
    *[({"$or": [{"b": 1}, {operator: 1}]}, "where.$or[1]") for operator in FORBIDDEN],
    ({"a": {"$gt": 1, "b": 2}}, "where.a"),
    ({"a": {"b": 2, "$gt": 1}}, "where.a"),
    ({"a": {"$or": [{"b": 1}]}}, "where.a"),
    ({"$or": []}, "where.$or"),
    ({"$or": {"a": 1}}, "where.$or"),
    ({"$and": [{}]}, "where.$and[0]"),
    ({"$and": [1]}, "where.$and[0]"),
    ({"a": {"$in": 1}}, "where.a.$in"),
    ({"a": {"$in": "abc"}}, "where.a.$in"),
    ({"a": {"$in": [1, {"$x": 1}]}}, "where.a.$in[1]"),
    ({"a": {"$all": [{"$elemMatch": {"x": 1}}]}}, "where.a.$all[0]"),
    ({"a": {"$in": [re.compile("x")]}}, "where.a.$in[0]"),
    ({"a": {"$in": [Regex("x")]}}, "where.a.$in[0]"),
    ({"a": {"$gt": Regex("x")}}, "where.a.$gt"),
    ({"a": re.compile("x")}, "where.a"),
    ({"a": Regex("x")}, "where.a"),
    ({"a": {"$exists": 1}}, "where.a.$exists"),
    ({"a": {"$type": "text"}}, "where.a.$type"),
    ({"a": {"$type": []}}, "where.a.$type"),
    ({"a": {"$type": True}}, "where.a.$type"),
    ({"a": {"$type": [["int"]]}}, "where.a.$type"),
    ({"a": {"$regex": 1}}, "where.a.$regex"),
    ({"a": {"$regex": "a\0b"}}, "where.a.$regex"),
    ({"a": {"$regex": "x" * 40_000}}, "where.a.$regex"),
    ({"a": {"$regex": "\ud800"}}, "where.a.$regex"),
    ({"a": {"$regex": "x", "$options": "g"}}, "where.a.$options"),
    ({"a": {"$options": "i"}}, "where.a.$options"),
    ({"a": {"$size": -1}}, "where.a.$size"),
    ({"a": {"$size": True}}, "where.a.$size"),
    ({"a": {"$size": 1.0}}, "where.a.$size"),
    ({"a": {"$mod": [0, 1]}}, "where.a.$mod"),
    ({"a": {"$mod": [2]}}, "where.a.$mod"),
    ({"a": {"$mod": [2, 2**63]}}, "where.a.$mod"),
    ({"a": {"$not": 3}}, "where.a.$not"),
    ({"a": {"$not": {}}}, "where.a.$not"),
    ({"a": {"$elemMatch": []}}, "where.a.$elemMatch"),
    ({"a": {"$elemMatch": {"$gt": 1, "b": 1}}}, "where.a.$elemMatch"),
    ({"a": {"$elemMatch": {"$or": [{"$gt": 1}]}}}, "where.a.$elemMatch.$or[0]"),
    ({"a": datetime(2024, 1, 1)}, "where.a"),
    ({"a": {"b": [object()]}}, "where.a.b[0]"),
    ({"a": 2**64}, "where.a"),
    ({"a": {"$gt": {1, 2}}}, "where.a.$gt"),
    ({"a": "x" * 1_100_000}, "where.a"),
    ({"a": "x" * 700_000, "b": "y" * 700_000}, "where"),
]


@pytest.mark.parametrize(("where", "place"), WRONG)
def test_a_filter_off_the_safe_list_is_refused_and_the_place_is_named(where: Any, place: str) -> None:
    with pytest.raises(mongoq.FilterInvalid) as caught:
        as_server_reads(where)
    assert caught.value.argument == place
    assert isinstance(caught.value, mongoq.ArgumentInvalid)


def test_the_safe_list_holds_no_operator_that_runs_code_or_leaves_the_payload() -> None:
    assert not {*LOGICAL, *OPERATORS} & set(FORBIDDEN)


def test_nesting_is_bounded() -> None:
    assert as_server_reads(nested(NESTING_LIMIT - 1))
    for wrong in (nested(NESTING_LIMIT), nested(400)):
        with pytest.raises(mongoq.FilterInvalid, match="nested deeper"):
            as_server_reads(wrong)
    where: Any = {"$gt": 1}
    for _ in range(400):
        where = {"$not": where}
    with pytest.raises(mongoq.FilterInvalid, match="nested deeper"):
        as_server_reads({"a": where})


def test_a_long_path_does_not_hide_the_reason() -> None:
    with pytest.raises(mongoq.FilterInvalid, match="not one of") as caught:
        as_server_reads({"a" * 5000: {"$where": "1"}})
    assert len(caught.value.argument) < 200
