"""Items that become several: all of what comes of one is written, or nothing of it, and each once."""

from __future__ import annotations

from typing import Any

from bson import ObjectId
from pydantic import BaseModel

import mongoq
from tests.pipeline.conftest import Site, counted, each_server_engine

LARGE = "x" * (15 * 1024 * 1024)


def forking(*targets: str, errors: str | None = "graph.errors", **options: Any) -> Any:
    """Return a pipeline, and the decorator of its one stage."""
    pipeline = mongoq.Pipeline("graph", errors=errors, outputs=targets, trail=options.pop("trail", False))
    return pipeline, pipeline.stage("raw", to=targets, **{"max_retries": 0, **options})


@each_server_engine
def test_an_item_becomes_several(site: Site) -> None:
    ids = site.queue("raw").push_many(range(30), headers={"from": "test"}, priority=2)
    pipeline, stage = forking("a", "b", "c")

    @stage
    def split(n: int) -> mongoq.Fork:
        third = mongoq.Move("c", payload={"n": n}, priority=-1, headers=None, delay=60) if n % 3 == 0 else None
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b", payload=n * 10), mongoq.Move("b", payload=-n), third])

    site.drain(pipeline)
    a, b, c = (site.queue(name).peek(100, state=None) for name in "abc")
    assert [item.payload for item in a] == list(range(30)), "in the order of what they come from"
    assert counted([item.payload for item in b]) == counted([n * 10 for n in range(30)] + [-n for n in range(30)])
    assert counted([item.payload for item in c]) == counted([{"n": n} for n in range(0, 30, 3)])
    assert len({item.id for item in (*a, *b, *c)} | set(ids)) == 30 + 30 + 60 + 10, "each has an id of its own"
    assert {(item.priority, item.headers["from"], item.attempts, item.hops) for item in (*a, *b)} == {(2, "test", 0, 1)}
    assert {(item.priority, dict(item.headers) == {}, item.state) for item in c} == {(-1, True, "scheduled")}
    assert site.broker.queues() == ["a", "b", "c"]
    stats = site.broker.stats()
    assert (stats["a"].put, stats["b"].put, stats["c"].put, stats["raw"].commit) == (30, 60, 10, 30)


def test_a_fork_into_nothing_drops_its_item(site: Site) -> None:
    site.queue("raw").push_many([1, 2])
    pipeline, stage = forking("a", "b")

    @stage
    def split(n: int) -> mongoq.Fork:
        return mongoq.Fork([None, None] if n == 1 else [])

    site.drain(pipeline)
    assert site.broker.queues() == []


def test_the_queue_of_a_fork_keeps_its_items_in_history(site: Site) -> None:
    id = site.queue("raw", history=60).push("x")
    pipeline, stage = forking("a", "b", trail="payloads")

    @stage
    def split(payload: str) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("a", payload="y"), mongoq.Move("b")])

    site.drain(pipeline)
    [processed] = site.queue("raw").history()
    assert (processed.id, processed.payload, [hop.ended for hop in processed.trail]) == (id, "x", ["done"])
    for name, payload in (("a", "y"), ("b", "x")):
        [item] = site.queue(name).peek()
        assert item.payload == payload
        [hop] = item.trail
        assert (hop.queue, hop.stage, hop.ended, hop.to, hop.payload) == ("raw", "split", "moved", name, "x")


class Flight(BaseModel):
    number: int


def test_outputs_fit_the_models_of_the_stages_behind(site: Site) -> None:
    site.queue("raw").push_many([1, "two"])
    pipeline, stage = forking("a", "b")

    @stage
    def split(n: Any) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("b", payload=n), mongoq.Move("a", payload={"number": n})])

    got = []

    @pipeline.sink("a", model=Flight)
    def take(flight: Flight) -> None:
        got.append(flight.number)

    site.drain(pipeline)
    assert (got, site.payloads("b")) == ([1], [1])
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.error is not None
    assert (letter.payload, letter.error.type) == ("two", "mongoq.errors.PayloadInvalid")


def test_outputs_that_cannot_be_are_a_failure(site: Site) -> None:
    cases: list[tuple[Any, str]] = [
        ([mongoq.Move("elsewhere")], "moved an item to 'elsewhere'"),
        ([mongoq.Move("a"), 5], "outputs[1]: a Move or None, not int"),
        ([mongoq.Move("a", patch={"$set": {"x": 1}})], "outputs[0]: a new item has nothing to patch"),
        ("ab", "outputs: a list or another iterable, not str"),
        ([mongoq.Move("a", payload=2**64)], "an integer beyond 64 bits"),
        ([mongoq.Move("a", delay=-1)], "delay"),
        ([mongoq.Move("a", priority=1000)], "priority"),
        ([mongoq.Move("a")] * 10_001, "10,001 outputs, and 10,000 is the limit"),
        ([mongoq.Move("a", payload=LARGE)] * 3, "bytes as BSON, and 33,554,432 is the limit"),
        ([mongoq.Move("a", payload=LARGE * 2)], "31,457,299 bytes as BSON"),
    ]
    site.queue("raw").push_many(range(len(cases)))
    pipeline, stage = forking("a", "b")
    stage(lambda n: mongoq.Fork(cases[n][0]))
    site.drain(pipeline)
    messages = {letter.payload: letter.error.message for letter in site.queue("graph.errors").peek(20) if letter.error}
    for n, (_, problem) in enumerate(cases):
        assert problem in messages[n]
    assert site.broker.queues() == ["graph.errors"]


def test_what_is_wrong_with_one_of_a_batch_is_its_own(site: Site) -> None:
    site.queue("raw").push_many(range(20))
    pipeline, stage = forking("a", "b", batch=20)

    @stage
    def split(numbers: list[int]) -> list[mongoq.Fork]:
        return [mongoq.Fork([mongoq.Move("a"), mongoq.Move("b", payload=LARGE * 2 if n == 7 else n)]) for n in numbers]

    site.drain(pipeline)
    fine = [n for n in range(20) if n != 7]
    assert (site.payloads("a"), site.payloads("b"), site.payloads("graph.errors")) == (fine, fine, [7])


def test_one_that_is_lost_takes_nobody_with_it_and_leaves_nothing(site: Site) -> None:
    ids = site.queue("raw").push_many(range(10))
    pipeline, stage = forking("a", "b", batch=10)

    @stage
    def split(numbers: list[int]) -> list[mongoq.Fork]:
        elsewhere = {"token": ObjectId(), "q": "elsewhere"}
        site.raw.update_one({"_id": ids[3]}, {"$set": elsewhere})  # somebody else has it by now
        site.raw.delete_one({"_id": ids[6]})
        return [mongoq.Fork([mongoq.Move("a"), mongoq.Move("b")]) for n in numbers]

    site.drain(pipeline)
    remaining = [n for n in range(10) if n not in (3, 6)]
    assert (site.payloads("a"), site.payloads("b")) == (remaining, remaining)
    assert site.raw.count_documents({"_id": ids[3], "q": "elsewhere"}) == 1


def test_a_plain_worker_forks_as_well(site: Site) -> None:
    site.queue("raw").push(1)
    worker = mongoq.Worker(site.broker)

    @worker.consumer("raw")
    def split(n: int) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b", payload=n + 1)])

    worker.run(drain=True)
    assert (site.payloads("a"), site.payloads("b")) == ([1], [2])
    assert site.queue("a").peek()[0].hops == 1


def test_at_most_once_forks_as_well(site: Site) -> None:
    site.queue("raw").push_many([1, 2])
    pipeline, stage = forking("a", "b", delivery="at-most-once")

    @stage
    def split(n: int) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b", payload=-n), mongoq.Move("b", payload=-n)])

    site.drain(pipeline)
    assert (sorted(site.payloads("a")), sorted(site.payloads("b"))) == ([1, 2], [-2, -2, -1, -1])
