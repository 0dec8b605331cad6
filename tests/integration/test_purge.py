"""Purges that choose: what the server refuses, what changes while they run, and which plans they have."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from tests.integration.commands import explain, listened_to


def test_a_pattern_that_the_server_refuses_is_reported_as_one(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push({"name": "x"})
    queue.push_many([{"name": "x"}, {"name": "y"}], sequence="s")
    for options in ({}, {"limit": 3}, {"state": "blocked"}):
        with pytest.raises(mongoq.FilterInvalid, match="where: the server refuses it"):
            queue.purge(where={"name": {"$regex": "("}}, **options)  # type: ignore[arg-type]
    assert queue.counts().total == 3


def test_what_is_claimed_or_changed_after_it_was_read_stays(uri: str, database: str, raw: Any) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders")
        queue.push_many([{"n": n} for n in range(4)])

        def change(name: str, _: Any) -> None:
            if name == "delete":
                raw.update_one({"payload.n": 0}, {"$set": {"payload.n": 9}})
                raw.update_one({"payload.n": 1}, {"$set": {"q": "next"}})

        commands.before = change
        assert queue.purge(where={"n": {"$lt": 9}}, limit=3) == 2
        commands.before = None
        assert [item.payload["n"] for item in queue.peek(9)] == [9]
        assert [item.payload["n"] for item in broker.queue("next").peek(9)] == [1]


def test_a_page_begins_behind_the_one_before(uri: str, database: str, raw: Any) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders")
        queue.push_many(range(2_050))
        assert queue.purge(limit=2_000) == 2_000
        plan = explain(raw, commands.last("find"))
        assert not {"SORT", "COLLSCAN"} & set(plan.stages)
        assert queue.size() == 50
