"""Items of several queues that belong together: each pair once, whoever comes first, and what becomes of the others."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pydantic import BaseModel

import mongoq
from mongoq.pipeline.run.consumers import machinery
from mongoq.protocol.settle.apply_outcomes import apply_outcomes
from mongoq.protocol.state.context import context_of
from mongoq.testing import VirtualBroker
from tests.pipeline.conftest import QUICK, Site, counted
from tests.waiting import until


def joining(on: Any = "id", **options: Any) -> Any:
    """Return a pipeline, and the decorator of its one join."""
    errors = options.pop("errors", "graph.errors")
    pipeline = mongoq.Pipeline("graph", errors=errors, outputs="out", trail=options.pop("trail", False))
    return pipeline, pipeline.join(["a", "b"], to="out", on=on, **{"max_retries": 0, **options})


def both(a: Any, b: Any) -> Any:
    return {"a": a, "b": b}


def test_items_with_the_same_value_are_joined(site: Site) -> None:
    site.queue("a").push_many([{"id": n, "from": "a"} for n in range(30)])
    site.queue("b").push_many([{"id": n, "from": "b"} for n in reversed(range(30))])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    pairs = [{"a": {"id": n, "from": "a"}, "b": {"id": n, "from": "b"}} for n in range(30)]
    assert counted(site.payloads("out")) == counted(pairs)
    assert site.broker.queues() == ["out"]
    assert left_over(site) == []


def left_over(site: Site) -> list[Any]:
    """Return the control documents of joins."""
    raw = site.broker._driver._backend.targets["collection"]
    return [document["_id"] for document in raw.find({"_id": {"$regex": "^join:"}})]


def test_who_comes_first_waits(site: Site) -> None:
    pipeline, join = joining()
    join(both)
    for name, partner in (("a", "b"), ("b", "a")):
        site.queue(name).push({"id": 1, "from": name})
        site.drain(pipeline)
        assert site.payloads("out") == []
        [waiting] = pipeline.waiting(site.broker)
        assert (waiting.stage, waiting.queue, waiting.value, waiting.until) == ("both", name, 1, None)
        site.queue(partner).push({"id": 1, "from": partner})
        site.drain(pipeline)
        assert site.payloads("out") == [{"a": {"id": 1, "from": "a"}, "b": {"id": 1, "from": "b"}}]
        site.queue("out").purge()
        assert (list(pipeline.waiting(site.broker)), left_over(site), site.broker.queues()) == ([], [], [])


def test_several_of_one_value_pair_in_order(site: Site) -> None:
    pipeline, join = joining()
    join(both)
    site.queue("a").push_many([{"id": "x", "n": n} for n in range(5)])
    site.drain(pipeline)
    site.queue("b").push_many([{"id": "x", "n": n} for n in range(3)])
    site.drain(pipeline)
    site.queue("b").push_many([{"id": "x", "n": n} for n in range(3, 7)])
    site.drain(pipeline)
    assert sorted((pair["a"]["n"], pair["b"]["n"]) for pair in site.payloads("out")) == [(n, n) for n in range(5)]
    assert [waiter.item.payload["n"] for waiter in pipeline.waiting(site.broker)] == [5, 6]


def test_the_first_of_each(site: Site) -> None:
    site.queue("a").push_many(["a0", "a1", "a2"])
    site.queue("b").push_many(["b0", "b1"])
    pipeline, join = joining(on=None)
    join(both)
    site.drain(pipeline)
    assert site.payloads("out") == [{"a": "a0", "b": "b0"}, {"a": "a1", "b": "b1"}]
    assert [waiter.item.payload for waiter in pipeline.waiting(site.broker)] == ["a2"]


def test_three_are_joined_when_the_last_of_them_is_there(site: Site) -> None:
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b", "c"], to="out", on={"a": "id", "b": "key.id", "c": "ref"})
    def three(*payloads: Any) -> Any:
        return list(map(type, payloads)) and mongoq.Move("out", payload=[*payloads])

    for name, payload in (("b", {"key": {"id": 7}}), ("a", {"id": 7}), ("a", {"id": 8}), ("c", {"ref": 7})):
        site.queue(name).push(payload)
        site.drain(pipeline)
    assert site.payloads("out") == [[{"id": 7}, {"key": {"id": 7}}, {"ref": 7}]]
    assert [waiter.value for waiter in pipeline.waiting(site.broker)] == [8]


@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [
        (1, 1.0, True),
        (1, Int64(1), True),
        (0.5, Decimal128("0.50"), True),
        (10, Decimal128("1E+1"), True),
        (0, -0.0, True),
        (1, True, False),
        (1, "1", False),
        (2**53, 2.0**53, True),
        (2**53 + 1, 2.0**53, False),
        ("x", b"x", False),
        (0.1, Decimal128("0.1"), False),
    ],
)
def test_values_are_equal_as_they_are_to_the_server(site: Site, a: Any, b: Any, pairs: bool) -> None:
    site.queue("a").push({"id": a})
    site.queue("b").push({"id": b})
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert len(site.payloads("out")) == pairs


@pytest.mark.parametrize("value", [None, [1], {"x": 1}, float("nan"), float("inf"), "x" * 2_000], ids=str)
def test_a_value_that_nobody_can_look_for_goes_to_the_error_path(site: Site, value: Any) -> None:
    site.queue("a").push({"id": value, "n": 1})
    site.queue("b").push("no document")
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert len(site.payloads("graph.errors")) == 2
    for letter in site.queue("graph.errors").peek(5):
        assert letter.origin is not None
        assert letter.origin.queue in ("a", "b")
        assert letter.origin.stage == "both"
        assert letter.origin.reason.startswith("cannot be joined: 'id' ")
    assert (list(pipeline.waiting(site.broker)), left_over(site)) == ([], [])


def passed(site: Site, pipeline: mongoq.Pipeline) -> None:
    """Let the time of those who wait pass."""
    if site.engine == "virtual":
        site.broker.advance(100)  # type: ignore[attr-defined]
    else:
        raw = site.broker._driver._backend.targets["collection"]
        now = site.broker._context.clock.now()
        raw.update_many({"q": "graph.both.waiting"}, {"$set": {"when": now}})
    site.drain(pipeline)


def test_a_partner_that_never_comes_is_an_error_in_the_end(site: Site) -> None:
    id = site.queue("a").push({"id": 1}, headers={"from": "test"}, key="mine")
    pipeline, join = joining(timeout=20)  # a drain that waited for partners would take so long
    join(both)
    site.drain(pipeline)
    [waiting] = pipeline.waiting(site.broker)
    assert waiting.until is not None
    assert (waiting.until - waiting.since).total_seconds() == 20
    passed(site, pipeline)
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.origin is not None
    assert (letter.id, letter.payload, letter.headers, letter.key) == (id, {"id": 1}, {"from": "test"}, None)
    assert letter.origin.key == "mine"
    assert (letter.origin.queue, letter.origin.stage) == ("a", "both")
    assert letter.origin.reason == "no item of 'b' came within 0:00:20"
    assert list(pipeline.waiting(site.broker)) == []


@pytest.mark.parametrize(("late", "out", "errors", "waits"), [("error", 0, 2, 0), ("wait", 1, 1, 0), ("drop", 0, 1, 0)])
def test_a_partner_that_comes_too_late(site: Site, late: Any, out: int, errors: int, waits: int) -> None:
    pipeline, join = joining(timeout=60, late=late)
    join(both)
    site.queue("a").push({"id": 1})
    site.drain(pipeline)
    passed(site, pipeline)
    site.queue("b").push({"id": 1, "late": True})
    site.drain(pipeline)
    site.queue("a").push({"id": 1, "n": 2})  # they find each other unless the first one was the late one
    site.drain(pipeline)
    waiting = len(list(pipeline.waiting(site.broker)))
    assert (len(site.payloads("out")), len(site.payloads("graph.errors")), waiting) == (out, errors, 1 - out)
    if late == "error":
        reasons = {letter.origin.reason for letter in site.queue("graph.errors").peek(5) if letter.origin}
        assert "it came too late: its partner of 'a' was given up before" in reasons


@pytest.mark.parametrize("late", ["error", "drop"])
def test_who_is_given_up_or_comes_too_late_is_counted_and_reported(
    server_site: Site, late: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site = server_site
    site.queue("a").push_many([{"id": 1}, {"id": 2}])
    pipeline, join = joining(timeout=60, late=late)
    join(both)
    site.drain(pipeline)
    passed(site, pipeline)
    assert "2 items of the join 'graph/both' have failed; the last: no item of 'b' came" in caplog.text
    site.queue("b").push_many([{"id": 1}, {"id": 2}])
    if site.engine == "threads":
        counts = pipeline.drain(site.broker).stages["both"]
        assert (counts.dead, counts.dropped) == ((2, 0) if late == "error" else (0, 2))
    else:
        site.drain(pipeline)
    assert site.queue("graph.errors").size() == (4 if late == "error" else 2)


def test_the_virtual_worker_tells_what_became_of_who_is_given_up_or_comes_too_late() -> None:
    for late, expected in (("error", "dead"), ("drop", "dropped")):
        pipeline, join = joining(timeout=60, late=late)
        join(both)
        with VirtualBroker() as broker:
            worker = broker.worker(pipeline)
            broker.queue("a").push({"id": 1})
            assert [result.outcome for result in worker.run_until_idle()] == ["done"]
            broker.advance(100)
            [given_up] = worker.run_until_idle()
            assert (given_up.outcome, given_up.to) == ("dead", "graph.errors")
            broker.queue("b").push({"id": 1})
            assert [result.outcome for result in worker.run_until_idle()] == [expected]


def test_a_join_may_go_on_with_what_is_there(site: Site) -> None:
    pipeline, join = joining(timeout=60, missing="pass")
    join(both)
    site.queue("a").push({"id": 1})
    site.queue("b").push({"id": 2})
    site.drain(pipeline)
    passed(site, pipeline)
    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([{"a": {"id": 1}, "b": None}, {"a": None, "b": {"id": 2}}])


class Order(BaseModel):
    id: int
    total: float


class Payment(BaseModel):
    id: int
    paid: float


def test_payloads_come_as_their_models(site: Site) -> None:
    site.queue("a").push_many([{"id": 1, "total": 5}, {"id": 2, "total": "much"}])
    site.queue("b").push_many([{"id": 1, "paid": 4}, {"id": 2, "paid": 1}])
    pipeline, join = joining(model=[Order, Payment])

    @join
    def settle(order: Order, payment: Payment) -> Any:
        return {"open": order.total - payment.paid}

    site.drain(pipeline)
    assert site.payloads("out") == [{"open": 1.0}]
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.payload == [{"id": 2, "total": "much"}, {"id": 2, "paid": 1}]


@pytest.mark.parametrize("model", [None, [Order, Payment]], ids=["untyped", "typed"])
def test_a_batch_of_pairs_is_one_call(site: Site, model: Any) -> None:
    total = {n: {"id": n, "total": n + 0.5} for n in range(10)}
    site.queue("a").push_many(total.values())
    site.queue("b").push_many([{"id": n, "paid": 1} for n in reversed(range(10))])
    pipeline, join = joining(model=model, batch=4)
    sizes = []

    @join
    def settle(pairs: Any, job: Any) -> Any:
        sizes.append(len(pairs))
        assert [item.payload for item in job.items] == pairs
        assert len({job.hash_of(item) for item in job.items}) == len(pairs)
        return [_settled(order, payment) for order, payment in pairs]

    def _settled(order: Any, payment: Any) -> Any:
        order, payment = (value if model is None else value.model_dump() for value in (order, payment))
        if order["id"] == 3:
            return ValueError("not this one")
        return mongoq.Drop() if order["id"] == 5 else {"open": order["total"] - payment["paid"]}

    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([{"open": n - 0.5} for n in range(10) if n not in (3, 5)])
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.payload == [total[3], {"id": 3, "paid": 1}]
    assert max(sizes) == 4
    assert sum(sizes) == 10


def test_a_failed_run_has_the_same_partners_and_hash_again(site: Site) -> None:
    ids = [site.queue("a").push({"id": 1}), site.queue("b").push({"id": 1})]
    pipeline, join = joining(max_retries=2, retry=QUICK)
    runs = []

    @join
    def work(a: Any, b: Any, job: Any) -> Any:
        runs.append((job.delivery_hash, a, b, job.item.id))
        if len(runs) < 3:
            raise ValueError("not yet")
        return both(a, b)

    site.drain(pipeline)
    assert len(runs) == 3
    assert len(set(map(repr, runs))) == 1
    assert runs[0][3] not in ids
    assert len(site.payloads("out")) == 1


def test_a_delivery_hash_is_that_of_its_inputs(site: Site) -> None:
    ids = [site.queue(name).push({"id": 1}) for name in "ab"]
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    hashes = []

    @pipeline.join(["a", "b"], to="round", on="id")
    def work(a: Any, b: Any, job: Any) -> Any:
        hashes.append(job.delivery_hash)
        return {"rounds": 0}

    @pipeline.stage("round", to=["round", "out"])
    def turn(payload: Any, job: Any) -> Any:
        hashes.append(job.delivery_hash)
        rounds = payload["rounds"] + 1
        return mongoq.Move("out" if rounds == 3 else "round", payload={"rounds": rounds})

    site.drain(pipeline)
    expected = sha256("\0".join(["work", *sorted([*map(str, ids), "joined 1"])]).encode()).hexdigest()
    assert hashes[0] == expected
    assert len(set(hashes)) == 4, "another one for each round"


def test_an_error_item_tells_its_inputs_and_goes_back(site: Site) -> None:
    ids = [site.queue("a").push({"id": 1}), site.queue("b").push({"id": 1})]
    pipeline, join = joining()
    broken = True

    @join
    def work(a: Any, b: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return both(a, b)

    site.drain(pipeline)
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.payload == [{"id": 1}, {"id": 1}]
    assert [(entry["queue"], entry["id"]) for entry in letter.stored("joined")["inputs"]] == [
        ("a", ids[0]),
        ("b", ids[1]),
    ]
    broken = False
    if site.engine == "virtual":
        return  # a replay needs a server
    assert site.broker.dead_queue("graph.errors").replay(stage="work").pushed == 1
    site.drain(pipeline)
    assert len(site.payloads("out")) == 1


def test_a_join_may_fork(site: Site) -> None:
    site.queue("a").push({"id": 1})
    site.queue("b").push({"id": 1})
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs=["x", "y"])

    @pipeline.join(["a", "b"], to=["x", "y"], on="id")
    def split(a: Any, b: Any) -> Any:
        return mongoq.Fork([mongoq.Move("x", payload=a), mongoq.Move("y", payload=b)])

    site.drain(pipeline)
    assert (site.payloads("x"), site.payloads("y")) == ([{"id": 1}], [{"id": 1}])
    assert site.broker.queues() == ["x", "y"]


def test_items_may_end_in_a_join(site: Site) -> None:
    site.queue("a").push({"id": 1})
    site.queue("b").push({"id": 1})
    pipeline = mongoq.Pipeline("graph", errors="graph.errors")
    pairs = []

    @pipeline.join(["a", "b"], on="id")
    def end(a: Any, b: Any) -> None:
        pairs.append((a, b))

    site.drain(pipeline)
    assert (pairs, site.broker.queues()) == ([({"id": 1}, {"id": 1})], [])


def test_what_was_joined_is_in_the_history_of_its_queue(site: Site) -> None:
    ids = {}
    for name in "ab":
        site.queue(name, history=60)
        ids[name] = site.queue(name, history=60).push({"id": 1}, key="k" if name == "a" else None)
    pipeline, join = joining(trail=True)
    join(both)
    site.drain(pipeline)
    for name in "ab":
        [item] = site.queue(name).history()
        assert (item.id, item.payload, item.queue) == (ids[name], {"id": 1}, name)
        assert item.key == ("k" if name == "a" else None)
        assert item.processed is not None
    [item] = site.queue("out").peek(5)
    assert [(hop.queue, hop.to) for hop in item.trail] == [
        ("a", "graph.both.joined"),
        ("b", "graph.both.joined"),
        ("graph.both.joined", "out"),
    ]


def test_a_pair_that_is_too_large_goes_to_the_error_path(site: Site) -> None:
    large = "x" * (9 * 1024 * 1024)
    for name in "ab":
        site.queue(name).push_many([{"id": 1, "x": large}, {"id": 2}])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert [pair["a"]["id"] for pair in site.payloads("out")] == [2]
    letters = site.queue("graph.errors").peek(5)
    assert {letter.origin.queue for letter in letters if letter.origin} == {"a", "b"}
    for letter in letters:
        assert letter.error is not None
        assert "bytes as BSON, and 16,711,680 is the limit" in letter.error.message
    assert (list(pipeline.waiting(site.broker)), left_over(site)) == ([], [])


def test_who_was_removed_while_it_waited_is_waited_for_no_more(site: Site) -> None:
    pipeline, join = joining()
    join(both)
    ids = site.queue("a").push_many([{"id": 1, "n": n} for n in range(3)])
    site.drain(pipeline)
    waiting = site.queue("graph.both.waiting")
    assert waiting.remove(ids[0])
    assert waiting.remove(ids[1])
    site.queue("b").push_many([{"id": 1, "n": n} for n in range(2)])
    site.drain(pipeline)
    assert [(pair["a"]["n"], pair["b"]["n"]) for pair in site.payloads("out")] == [(2, 0)]
    assert [waiter.item.payload["n"] for waiter in pipeline.waiting(site.broker)] == [1]


def test_one_that_is_lost_takes_nobody_with_it(site: Site) -> None:
    """Somebody else has an item by the time that it is to be joined; its neighbours are joined all the same."""
    if site.engine != "threads":
        pytest.skip("what settles is the same for all")
    raw = site.broker._driver._backend.targets["collection"]
    pipeline, join = joining()
    join(both)
    ids = site.queue("a").push_many([{"id": n} for n in range(20)])
    site.drain(pipeline)
    site.queue("b").push_many([{"id": n} for n in range(20)])
    queue = site.queue("b")
    items = queue.reserve_many(20)
    raw.update_one({"_id": items[3].id}, {"$set": {"token": ObjectId()}})
    raw.delete_one({"_id": items[7].id})
    arrivals = [
        consumer for consumer in machinery(pipeline.graph, site.broker, coroutines=False)[0] if consumer.name == "b"
    ]
    [consumer] = arrivals
    verdicts = consumer.resolver.outcomes(consumer, items, None)
    flow = apply_outcomes(consumer.queue._context, list(zip(items, verdicts, strict=True)), context_of)
    failed = site.broker._driver.run(flow)
    assert {key: type(error) for key, error in failed.items()} == {
        items[place].id.binary: mongoq.ReservationLost for place in (3, 7)
    }
    remaining = sorted(waiter.item.payload["id"] for waiter in pipeline.waiting(site.broker))
    assert remaining == [3, 7]
    assert site.queue("graph.both.joined").size() == 18
    assert len(ids) == 20


@pytest.mark.parametrize("on", ["id", None])
def test_several_processes_join_at_once(server_site: Site, on: Any) -> None:
    """Runs of their own, in brokers of their own, all of whose transactions meet at the same few values."""
    pipeline, join = joining(on=on, errors="graph.errors")
    join(both)
    numbers = 150
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(mongoq.connect(server_site._uri, database=server_site._database)) for _ in range(3)
        ]
        runs = [stack.enter_context(pipeline.start(broker)) for broker in brokers]
        for n in range(numbers):
            server_site.queue("a").push({"id": n % 7, "n": n})
            server_site.queue("b").push({"id": n % 7, "n": n})
        until(lambda: server_site.queue("out").size() == numbers)
        assert not any(run.ended for run in runs)
    pairs = server_site.payloads("out")
    assert sorted(pair["a"]["n"] for pair in pairs) == sorted(pair["b"]["n"] for pair in pairs) == list(range(numbers))
    if on:
        assert all(pair["a"]["id"] == pair["b"]["id"] for pair in pairs)
    assert (server_site.broker.queues(), left_over(server_site)) == (["out"], [])


@pytest.mark.prove
def test_those_who_wait_are_not_looked_through(server_site: Site) -> None:
    """Who comes looks at its own value and at one place, by an index, however many wait."""
    pipeline, join = joining(on=None)
    join(both)
    site = server_site
    site.queue("a").push_many([{"n": n} for n in range(3_000)])
    site.drain(pipeline)
    raw = site.broker._driver._backend.targets["collection"]
    plan = raw.find(
        {
            "q": "graph.both.waiting",
            "key": {"$in": [f"*:{sha256(b'a').hexdigest()[:8]}:2000"]},
            "when": {"$exists": True},
        }
    ).explain()
    stats = plan["executionStats"]
    assert stats["totalKeysExamined"] <= 2
    assert stats["totalDocsExamined"] == 1
    site.queue("b").push("b")
    site.drain(pipeline)
    assert site.payloads("out") == [{"a": {"n": 0}, "b": "b"}]


def test_given_up_letters_of_one_value_go_back_and_wait_anew(server_site: Site) -> None:
    pipeline, join = joining(timeout=60, late="wait")
    join(both)
    for n in range(2):
        server_site.queue("a").push({"id": 1, "n": n}, key=f"k{n}")
        server_site.drain(pipeline)
        passed(server_site, pipeline)
    assert server_site.broker.dead_queue("graph.errors").replay().pushed == 2
    assert sorted(str(item.key) for item in server_site.queue("a").peek(5)) == ["k0", "k1"]
    server_site.queue("b").push_many([{"id": 1}, {"id": 1}])
    server_site.drain(pipeline)
    assert sorted(pair["a"]["n"] for pair in server_site.payloads("out")) == [0, 1]


@pytest.mark.parametrize("late", ["error", "drop"])
def test_who_was_given_up_and_comes_back_is_missed_no_more(server_site: Site, late: Any) -> None:
    pipeline, join = joining(timeout=60, late=late)
    join(both)
    for n in range(2):
        server_site.queue("a").push({"id": 1, "n": n})
    server_site.drain(pipeline)
    passed(server_site, pipeline)
    assert server_site.broker.dead_queue("graph.errors").replay().pushed == 2
    server_site.drain(pipeline)
    for _ in range(3):
        server_site.queue("b").push({"id": 1})
    server_site.drain(pipeline)
    assert len(server_site.payloads("out")) == 2
    [third] = pipeline.waiting(server_site.broker)
    assert third.queue == "b", "it is early, and not late"
    assert server_site.payloads("graph.errors") == []
    raw = server_site.broker._driver._backend.targets["collection"]
    assert raw.count_documents({"missed": {"$exists": True}, "q": {"$exists": True}}) == 0


@pytest.mark.prove
def test_a_drain_ends_when_what_was_given_up_has_been_run(server_site: Site) -> None:
    pipeline, join = joining(timeout=0.2, missing="pass")
    join(both)
    for n in range(5):
        server_site.queue("a").push({"id": n})
        server_site.drain(pipeline)
        time.sleep(0.25)
        server_site.drain(pipeline)
        assert len(server_site.payloads("out")) == n + 1


def test_who_waits_is_known_by_its_queue_whatever_the_order_or_number_of_them(server_site: Site) -> None:
    def joining_of(*sources: str) -> mongoq.Pipeline:
        pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

        @pipeline.join(sources, to="out", on="id", name="both")
        def both(*payloads: Any) -> Any:
            return mongoq.Move("out", payload=[payload["from"] for payload in payloads])

        return pipeline

    def push(*names: str) -> None:
        for name in names:
            server_site.queue(name).push({"id": 1, "from": name})

    push("a")
    server_site.drain(joining_of("a", "b"))
    push("a")
    server_site.drain(joining_of("b", "a"))
    push("a", "b")
    server_site.drain(joining_of("a", "b", "c"))
    assert server_site.payloads("out") == []
    push("c")
    server_site.drain(joining_of("c", "a", "b"))
    assert server_site.payloads("out") == [["c", "a", "b"]]
    push("b", "b")
    server_site.drain(joining_of("b", "a"))
    assert server_site.payloads("out") == [["c", "a", "b"], ["b", "a"], ["b", "a"]]
    assert (server_site.broker.queues(), left_over(server_site)) == (["out"], [])


def test_a_pair_does_not_go_back_to_where_it_was_two(server_site: Site) -> None:
    for name in "ab":
        server_site.queue(name).push({"id": 1, "from": name})
    pipeline, join = joining(trail="payloads")

    @join
    def work(a: Any, b: Any) -> Any:
        raise ValueError("broken")

    server_site.drain(pipeline)
    letters = server_site.broker.dead_queue("graph.errors")
    result = letters.replay(hop="a")
    assert (result.pushed, result.refused) == (0, 1)
    assert result.refusals[0][1] == "hop: it was joined with others behind 'a'; those would be lost"
    assert letters.replay(hop="graph.work.joined").pushed == 1


def test_a_value_that_cannot_be_joined_stops_a_join_without_an_error_queue(server_site: Site) -> None:
    id = server_site.queue("a").push({"n": 1})
    pipeline, join = joining(errors=None)
    join(both)
    with pytest.raises(mongoq.StageStopped) as stopped:
        server_site.drain(pipeline)
    assert isinstance(stopped.value.__cause__, mongoq.PartnerMissing)
    assert "cannot be joined: 'id' is missing, or null" in str(stopped.value.__cause__)
    assert server_site.queue("a").get(id) is not None


@pytest.mark.parametrize("max_retries", [0, None])
def test_who_is_given_up_stops_a_join_without_an_error_queue(server_site: Site, max_retries: Any) -> None:
    id = server_site.queue("a").push({"id": 1})
    pipeline, join = joining(errors=None, timeout=60, max_retries=max_retries)
    join(both)
    server_site.drain(pipeline)
    with pytest.raises(mongoq.StageStopped) as stopped:
        passed(server_site, pipeline)
    assert isinstance(stopped.value.__cause__, mongoq.PartnerMissing)
    [waiting] = pipeline.waiting(server_site.broker)
    assert waiting.item.id == id


@pytest.mark.parametrize("odd", [Decimal128("sNaN"), Decimal128("NaN"), Decimal128("1E+6000")], ids=str)
def test_an_odd_number_fails_alone(site: Site, odd: Any) -> None:
    site.queue("a").push_many([{"id": 1}, {"id": odd}, {"id": 2}])
    site.queue("b").push_many([{"id": 1}, {"id": 2}])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert len(site.payloads("out")) == 2
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.origin is not None
    assert letter.origin.reason.startswith("cannot be joined: 'id' is ")


@pytest.mark.parametrize(
    "change",
    [{"headers": "x"}, {"priority": "x"}, {"parked": {}}, {"parked": {"at": "x"}}, {"trail": 5}],
    ids=str,
)
def test_who_waits_with_odd_fields_stops_nobody_else(server_site: Site, change: Any) -> None:
    """Other programs may have written anything to an item; its partner fails, and all others are joined."""
    site = server_site
    raw = site.broker._driver._backend.targets["collection"]
    pipeline, join = joining()
    join(both)
    site.queue("a").push_many([{"id": n} for n in range(5)])
    site.drain(pipeline)
    raw.update_one({"q": "graph.both.waiting", "payload.id": 2}, {"$set": change})
    site.queue("b").push_many([{"id": n} for n in range(5)])
    site.drain(pipeline)
    joined = {pair["a"]["id"] for pair in site.payloads("out")}
    assert joined >= {0, 1, 3, 4}
    assert len(joined) + len(site.payloads("graph.errors")) == 5


def test_a_place_that_is_taken_is_the_error_of_one_item(server_site: Site) -> None:
    """Somebody has removed the control document of a value for which one waits."""
    site = server_site
    raw = site.broker._driver._backend.targets["collection"]
    pipeline, join = joining()
    join(both)
    site.queue("a").push({"id": 1})
    site.drain(pipeline)
    raw.delete_many({"_id": {"$regex": "^join:"}})
    site.queue("a").push_many([{"id": 1, "again": True}, {"id": 2}])
    site.drain(pipeline)
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.payload == {"id": 1, "again": True}
    assert letter.error is not None
    assert letter.error.message.startswith("it cannot be settled like that: ")
    assert sorted(waiter.value for waiter in pipeline.waiting(site.broker)) == [1, 2]


def of_all(sources: Any, **options: Any) -> Any:
    """Return a pipeline with a join of these queues, which goes on with the payloads as they come."""
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(list(sources), to="out", on="id", name="both", **options)
    def all_of(*payloads: Any) -> Any:
        return mongoq.Move("out", payload=[payload and payload["from"] for payload in payloads])

    return pipeline


def test_sides_are_known_by_their_queues(site: Site) -> None:
    """A join may name its queues in another order, or one more, while items wait."""
    site.queue("a").push({"id": 1, "from": "a1"})
    site.drain(of_all("ab"))
    site.queue("a").push({"id": 1, "from": "a2"})
    site.drain(of_all("ba"))
    assert site.payloads("out") == []
    site.queue("b").push({"id": 1, "from": "b1"})
    site.drain(of_all("ba"))
    assert site.payloads("out") == [["b1", "a1"]]
    site.queue("a").push({"id": 1, "from": "a3"})
    site.drain(of_all("cab"))
    for name in "bc":
        site.queue(name).push({"id": 1, "from": name})
    site.drain(of_all("cab"))
    assert site.payloads("out") == [["b1", "a1"], ["c", "a2", "b"]]
    site.drain(of_all("bc", timeout=60))
    [waiting] = of_all("bc").waiting(site.broker)
    assert (waiting.queue, waiting.item.payload["from"]) == ("a", "a3")


def test_those_given_up_together_are_not_missed_themselves(site: Site) -> None:
    """Only the third of them comes too late; the next three are joined."""
    pipeline = of_all("abc", timeout=60)
    for name in "ab":
        site.queue(name).push({"id": 1, "from": name})
    site.drain(pipeline)
    passed(site, pipeline)
    site.queue("c").push({"id": 1, "from": "c"})
    site.drain(pipeline)
    assert sorted(payload["from"] for payload in site.payloads("graph.errors")) == ["a", "b", "c"]
    for name in "abc":
        site.queue(name).push({"id": 1, "from": name})
        site.drain(pipeline)
    assert site.payloads("out") == [["a", "b", "c"]]
    assert left_over(site) == []


def test_one_that_is_too_large_to_go_on_alone_goes_to_the_error_path(site: Site) -> None:
    pipeline = of_all("ab", timeout=60, missing="pass")
    site.queue("a").push({"id": 1, "from": "x" * (16 * 1024 * 1024 - 64 * 1024 - 100)})
    site.queue("a").push({"id": 2, "from": "a"})
    site.drain(pipeline)
    passed(site, pipeline)
    site.drain(pipeline)
    assert site.payloads("out") == [["a", None]]
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.error is not None
    assert letter.error.message.startswith("payload of 1 items joined: ")
    assert site.broker.queues() == ["graph.errors", "out"]


@pytest.mark.prove
def test_empty_places_are_passed_in_few_looks(server_site: Site) -> None:
    """All who wait are removed at once."""
    site = server_site
    pipeline, join = joining(on=None)
    join(both)
    site.queue("a").push_many(range(4_000))
    site.drain(pipeline)
    site.queue("graph.both.waiting").purge()
    site.queue("b").push_many(["b", "c"])
    database = site.broker._driver._backend.targets["collection"].database
    database.command({"profile": 1, "slowms": 0, "filter": {"op": "query"}})
    site.drain(pipeline)
    database.command({"profile": 0})
    assert [waiter.item.payload for waiter in pipeline.waiting(site.broker)] == ["b", "c"]
    looks = database["system.profile"].count_documents({"command.filter.q": "graph.both.waiting"})
    assert 0 < looks < 20


@pytest.mark.parametrize("payload", [{"x": 1, "y": 2}, "ab", [1], [1, 2, 3], None], ids=str)
def test_what_was_put_among_the_joined_by_hand_is_an_error(site: Site, payload: Any) -> None:
    site.queue("graph.both.joined").push(payload)
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert site.payloads("out") == []
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.error is not None
    assert letter.error.message.startswith("payload: a list of 2, one of each queue, not ")


def test_what_was_put_among_the_joined_by_hand_fails_alone_in_a_batch(site: Site) -> None:
    site.queue("graph.both.joined").push_many([[1, 2], [1], {"x": 1, "y": 2}, [3, 4]])
    pipeline, join = joining(batch=10)

    @join
    def both(pairs: Any) -> Any:
        return [a + b for a, b in pairs]

    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([3, 7])
    assert counted(letter.payload for letter in site.queue("graph.errors").peek(5)) == counted([[1], {"x": 1, "y": 2}])


def test_a_coroutine_function_is_named_by_its_own_name(server_site: Site) -> None:
    pipeline, join = joining()

    async def work(a: Any, b: Any) -> Any:
        return both(a, b)

    join(work)
    with pytest.raises(mongoq.GraphInvalid, match=r"<locals>\.work is a coroutine function"):
        pipeline.drain(server_site.broker if server_site.engine == "threads" else pytest.skip("threads alone"))


def test_what_died_before_it_was_joined_comes_along_with_the_others(
    server_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site, number = server_site, 20
    for name in "ab":
        site.queue(name).push_many([{"id": n} for n in range(number)])
        for _ in range(3):
            items = site.queue(name).reserve_many(number, lease=0.01)
            assert len(items) == number
            until(lambda items=items: site.broker._context.clock.now() > max(item.lease_until for item in items))  # type: ignore[misc]
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert len(site.payloads("out")) == number
    assert site.payloads("graph.errors") == []
    assert "alone" not in caplog.text


def test_the_virtual_broker_joins_what_died_before_as_well() -> None:
    pipeline, join = joining()
    join(both)
    with VirtualBroker() as broker:
        for name in "ab":
            broker.queue(name).push({"id": 1})
            assert broker.queue(name).reserve(lease=1)
        broker.advance(2)
        broker.worker(pipeline).run_until_idle()
        assert broker.queue("out").size() == 1


class _Evil(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def test_an_entry_that_cannot_be_looked_at_fails_alone(site: Site) -> None:
    site.queue("graph.both.joined").push_many([[1, 2], [3, 4]])
    pipeline, join = joining(batch=10)

    @join
    def both(pairs: Any) -> Any:
        return [_Evil(a=a) if a == 1 else a + b for a, b in pairs]

    site.drain(pipeline)
    assert site.payloads("out") == [7]
    assert [letter.payload for letter in site.queue("graph.errors").peek(5)] == [[1, 2]]


@pytest.mark.prove
def test_a_drain_waits_for_who_is_just_given_up(server_site: Site) -> None:
    """Somebody else has taken one whose time is up, and is gone; it comes back when that lease ends."""
    site = server_site
    raw = site.broker._driver._backend.targets["collection"]
    pipeline, join = joining(timeout=600)
    join(both)
    site.queue("a").push_many([{"id": 1}, {"id": 2}])
    site.drain(pipeline)
    soon = site.broker._context.clock.now() + timedelta(seconds=0.7)
    lease = {"when": soon, "reserved": True, "token": ObjectId(), "attempts": 1}
    raw.update_one({"q": "graph.both.waiting", "payload.id": 1}, {"$set": lease})
    with mongoq.connect(site._uri, database=site._database) as second:  # ours does not look before they are due
        Site(site.engine, second, site._uri, site._database).drain(pipeline)
    assert site.payloads("graph.errors") == [{"id": 1}]
    assert [waiter.value for waiter in pipeline.waiting(site.broker)] == [2]
