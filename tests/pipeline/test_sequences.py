"""Stages of pipelines let the next item of a sequence follow, however an item leaves their queues."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import Site


def pushed(site: Site, name: str = "raw", number: int = 12) -> None:
    sequences = ["even" if n % 2 == 0 else "odd" for n in range(number)]
    site.queue(name).push_many([{"n": n, "kind": "ab"[n // 2 % 2]} for n in range(number)], sequences=sequences)


def left_over(site: Site) -> list[Any]:
    """Return what is left of sequences: control documents, and items with a place."""
    raw = site.broker._driver._backend.targets["collection"]
    return list(raw.find({"$or": [{"_id": {"$regex": "^sequence:"}}, {"place": {"$exists": True}}]}))


def test_a_stage_takes_the_items_of_a_sequence_in_order(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    numbers: list[int] = []

    @pipeline.stage("raw", to="out", concurrency=4)
    def work(payload: Any) -> Any:
        numbers.append(payload["n"])
        return payload

    site.drain(pipeline)
    assert [n for n in numbers if n % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert [n for n in numbers if n % 2 == 1] == [1, 3, 5, 7, 9, 11]
    assert left_over(site) == []


def test_a_filter_lets_the_next_item_follow_what_it_settles(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    numbers: list[int] = []

    @pipeline.stage("raw", to="out", where={"kind": "b"}, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        numbers.append(payload["n"])
        return payload

    site.drain(pipeline)
    assert sorted(numbers) == [2, 3, 6, 7, 10, 11]
    assert [n for n in numbers if n % 2 == 0] == [2, 6, 10]
    assert left_over(site) == []


def test_a_fork_lets_the_next_item_follow(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs=["a", "b"])
    numbers: list[int] = []

    @pipeline.stage("raw", to=["a", "b"])
    def split(payload: Any) -> mongoq.Fork:
        numbers.append(payload["n"])
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b")])

    site.drain(pipeline)
    assert [n for n in numbers if n % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert sorted(numbers) == list(range(12))
    assert left_over(site) == []


def test_a_join_lets_the_next_items_follow(site: Site) -> None:
    for name in ("a", "b"):
        pushed(site, name)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], to="out", on="n")
    def both(a: Any, b: Any) -> Any:
        return {"a": a["n"], "b": b["n"]}

    site.drain(pipeline)
    assert sorted(pair["a"] for pair in site.payloads("out")) == list(range(12))
    assert all(pair["a"] == pair["b"] for pair in site.payloads("out"))
    assert left_over(site) == []


def test_a_stage_that_fails_lets_the_next_item_follow_its_letter(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any) -> Any:
        if payload["n"] in (0, 3):
            raise ValueError("no")
        return payload

    site.drain(pipeline)
    assert sorted(letter.payload["n"] for letter in site.queue("line.errors").peek(9)) == [0, 3]
    assert sorted(payload["n"] for payload in site.payloads("out")) == [1, 2, *range(4, 12)]
    assert left_over(site) == []


def test_a_filter_moves_nothing_into_a_sequence(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])
    otherwise = mongoq.Move("rest", sequence="a")
    pipeline.stage("raw", to=["out", "rest"], name="work", where={"kind": "a"}, otherwise=otherwise)(
        lambda payload: payload
    )
    with pytest.raises(mongoq.MongoqError, match="a filter moves no item into a sequence"):
        site.drain(pipeline)
