"""Types of arguments: what they read, and how they refuse the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import click
import pytest
from bson import Decimal128, Int64, ObjectId, json_util

import mongoq
from mongoq.cli.base.arguments import FILTER, JSON_VALUE, MOMENT, OBJECT_ID, QUEUE
from mongoq.cli.base.connection import Ago, _at
from mongoq.model.clock import VirtualClock
from mongoq.model.encoding.extended_json import JSON_OPTIONS, read_json

ID = "65a1b2c3d4e5f60718293a4b"


def convert(kind: click.ParamType, value: str) -> Any:
    return kind.convert(value, None, None)


@pytest.mark.parametrize(
    "text, at",
    [
        ("2026-11-26T14:30:00Z", datetime(2026, 11, 26, 14, 30, tzinfo=UTC)),
        ("2026-11-26T14:30:00.123456+02:00", datetime(2026, 11, 26, 12, 30, 0, 123_000, UTC)),
        ("2026-11-26T14:30", datetime(2026, 11, 26, 14, 30, tzinfo=UTC)),
        ("2026-11-26", datetime(2026, 11, 26, tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_names_a_zone(text: str, at: datetime) -> None:
    assert convert(MOMENT, text) == at


@pytest.mark.parametrize(
    "text, length",
    [("90s", timedelta(seconds=90)), ("30m", timedelta(minutes=30)), ("2h", timedelta(hours=2)), ("1w", timedelta(7))],
)
def test_a_time_ago_is_a_length_until_the_clock_of_the_server_is_known(text: str, length: timedelta) -> None:
    assert convert(MOMENT, text) == Ago(length)


def test_a_time_ago_is_taken_from_the_clock_of_the_server(raw: Any) -> None:
    now = datetime(2020, 1, 1, 12, tzinfo=UTC)
    with mongoq.Broker(raw, clock=VirtualClock(now)) as broker:
        assert _at(Ago(timedelta(hours=2)), broker) == datetime(2020, 1, 1, 10, tzinfo=UTC)
        assert _at(Ago(timedelta(weeks=200_000)), broker) == datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2h ago", "-2h", "999999999w", "2026-13-01", "0001-01-01T00:00+10:00"]
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it as|too long ago"):
        convert(MOMENT, text)


def test_an_id_has_24_hex_digits() -> None:
    assert convert(OBJECT_ID, ID) == ObjectId(ID)
    for text in (ID[:8], ID + "0", "", "z" * 24, f" {ID}"):
        with pytest.raises(click.BadParameter, match="24 hex digits"):
            convert(OBJECT_ID, text)


def test_json_takes_extended_json() -> None:
    text = f'{{"id": {{"$oid": "{ID}"}}, "at": {{"$date": "2026-11-26T14:30:00Z"}}, "n": {{"$numberLong": "7"}}}}'
    value = convert(JSON_VALUE, text)
    assert value == {"id": ObjectId(ID), "at": datetime(2026, 11, 26, 14, 30, tzinfo=UTC), "n": 7}
    assert isinstance(value["n"], Int64)
    assert value["at"].tzinfo is not None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"a": [1, 2.5, "ü", True, {"b": None}]},
        {"$regex": "a.c", "$options": "i"},
        UUID(int=7),
        Decimal128("1.10"),
        b"\0\xff",
        float("inf"),
        datetime(1, 1, 1, tzinfo=UTC),
    ],
)
def test_json_that_a_command_prints_is_read_back_equal(value: Any) -> None:
    assert read_json(json_util.dumps(value, json_options=JSON_OPTIONS)) == value


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{a: 1}", "not valid JSON"),
        ("", "not valid JSON"),
        ("NaN", "numberDouble"),
        ("1e400", "too large for a number"),
        ('{"a": [-1E999]}', "too large for a number"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' occurs twice"),
        ('{"$oid": "7"}', "extended JSON"),
        ('{"$binary": 7}', "extended JSON"),
        ('{"$date": "today"}', "extended JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_means_no_value_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem) as refused:
        convert(JSON_VALUE, text)
    assert "\n" not in refused.value.message


def test_a_filter_has_the_operators_of_where() -> None:
    text = f'{{"name": {{"$regex": "^a", "$options": "i"}}, "id": {{"$oid": "{ID}"}}, "n": {{"$type": "int"}}}}'
    assert convert(FILTER, text) == {
        "name": {"$regex": "^a", "$options": "i"},
        "id": ObjectId(ID),
        "n": {"$type": "int"},
    }


@pytest.mark.parametrize(
    "text, problem",
    [
        ('{"$where": "1"}', r"\$where"),
        ('{"a": {"$expr": 1}}', r"where\.a.*\$expr"),
        ("{}", "non-empty"),
        ("[1]", "non-empty"),
        ('{"a": {"$regularExpression": {"pattern": "x", "options": ""}}}', r"\$regex"),
    ],
)
def test_a_filter_with_other_operators_is_refused_by_its_place(text: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        convert(FILTER, text)


@pytest.mark.parametrize("name", ["", "$x", "a" * 121, "a\0b"])
def test_a_name_that_no_queue_can_have_is_refused(name: str) -> None:
    with pytest.raises(click.BadParameter):
        convert(QUEUE, name)
