"""Copies that a replay makes from the bytes of their originals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

import mongoq

START = datetime(2100, 1, 1, tzinfo=UTC)
"""The server deletes nothing before that."""


@pytest.fixture
def clock() -> mongoq.VirtualClock:
    return mongoq.VirtualClock(START)


@pytest.fixture
def source(raw: Any, clock: mongoq.VirtualClock) -> Iterator[mongoq.Queue[Any]]:
    with mongoq.Broker(raw, clock=clock) as broker:
        yield broker.queue("source", history=3600)


def test_copies_stand_in_the_order_of_their_originals_whatever_their_ids(source: mongoq.Queue[Any], raw: Any) -> None:
    ids = [ObjectId(f"65e06e6e{n:012x}{99 - n:04x}") for n in range(10)]
    source.push_many(range(10), ids=ids)
    source.commit_many(source.reserve_many(10))
    source.replay(to="copies", page=4)
    copies = [*raw.find({"q": "copies"}).sort([("when", 1), ("_id", 1)])]
    assert [copy["payload"] for copy in copies] == [*range(10)]
    assert [copy["_id"] for copy in copies] != sorted(copy["_id"] for copy in copies), "or this tests nothing"


def test_an_item_that_was_processed_again_is_copied_again(
    source: mongoq.Queue[Any], raw: Any, clock: mongoq.VirtualClock
) -> None:
    ids = [ObjectId(), ObjectId()]
    for expected in (2, 2):
        source.push_many([{"n": 1}, {"n": 2}], ids=ids)
        source.commit_many(source.reserve_many(2))
        assert source.replay(to="copies").pushed == expected
        raw.delete_many({"q": "source"})  # as when its history is over
        clock.advance(1)
