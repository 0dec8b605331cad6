"""Items of several queues that belong together: each pair once, whoever comes first, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pydantic import BaseModel
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq
from tests.pipeline.conftest import QUICK, Site, counted, every_engine
from tests.waiting import until

WAITING, JOINED = "graph.both.waiting", "graph.both.joined"


def joining(on: Any = "id", **options: Any) -> Any:
    """Return a pipeline, and the decorator of its one join."""
    errors = options.pop("errors", "graph.errors")
    pipeline = mongoq.Pipeline("graph", errors=errors, outputs="out", trail=options.pop("trail", False))
    return pipeline, pipeline.join(["a", "b"], to="out", on=on, **{"max_retries": 0, **options})


def both(a: Any, b: Any) -> Any:
    return {"a": a, "b": b}


def passed(site: Site, pipeline: mongoq.Pipeline) -> None:
    """Let the time of those who wait pass."""
    site.let_waiting_times_end(pipeline, WAITING)


def left_over(site: Site) -> list[Any]:
    """Return the control documents of joins."""
    return [document["_id"] for document in site.raw.find({"_id": {"$regex": "^join:"}})]


@every_engine
def test_items_with_the_same_value_are_joined(site: Site) -> None:
    site.queue("a").push_many([{"id": n, "from": "a"} for n in range(30)])
    site.queue("b").push_many([{"id": n, "from": "b"} for n in reversed(range(30))])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    pairs = [{"a": {"id": n, "from": "a"}, "b": {"id": n, "from": "b"}} for n in range(30)]
    assert counted(site.payloads("out")) == counted(pairs)
    assert site.broker.queues() == ["out"]
    assert site.raw is None or left_over(site) == []


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


def test_values_are_equal_as_they_are_to_the_server(site: Site) -> None:
    equal = [(1, 1.0), (2, Int64(2)), (0.5, Decimal128("0.50")), (10, Decimal128("1E+1")), (0, -0.0), (2**53, 2.0**53)]
    different = [(True, 3), (4, "4"), (2**53 + 1, b"x"), ("x", 5), (0.1, Decimal128("0.1"))]
    for place, name in enumerate("ab"):
        site.queue(name).push_many([{"id": pair[place]} for pair in equal + different])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert counted([(pair["a"]["id"], pair["b"]["id"]) for pair in site.payloads("out")]) == counted(equal)
    waiting = [waiter.value for waiter in pipeline.waiting(site.broker)]
    assert counted(waiting) == counted([value for pair in different for value in pair])


def test_a_value_that_nobody_can_look_for_goes_to_the_error_path(site: Site) -> None:
    odd = [None, [1], {"x": 1}, float("nan"), float("inf"), "x" * 2_000]
    odd += [Decimal128("sNaN"), Decimal128("NaN"), Decimal128("1E+6000")]
    site.queue("a").push_many([{"id": 1}, *({"id": value} for value in odd), {"id": 2}])
    site.queue("b").push_many(["no document", {"id": 1}, {"id": 2}])
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert sorted(pair["a"]["id"] for pair in site.payloads("out")) == [1, 2]
    letters = site.queue("graph.errors").peek(20)
    assert len(letters) == len(odd) + 1
    for letter in letters:
        assert letter.origin is not None
        assert letter.origin.queue in ("a", "b")
        assert letter.origin.stage == "both"
        assert letter.origin.reason.startswith("cannot be joined: 'id' ")
    assert (list(pipeline.waiting(site.broker)), left_over(site)) == ([], [])


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


@pytest.mark.parametrize(("late", "out", "errors"), [("error", 0, 2), ("wait", 1, 1), ("drop", 0, 1)])
def test_a_partner_that_comes_too_late(site: Site, late: Any, out: int, errors: int) -> None:
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
    site: Site, late: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.queue("a").push_many([{"id": 1}, {"id": 2}])
    pipeline, join = joining(timeout=60, late=late)
    join(both)
    site.drain(pipeline)
    passed(site, pipeline)
    assert "2 items of the join 'graph/both' have failed; the last: no item of 'b' came" in caplog.text
    site.queue("b").push_many([{"id": 1}, {"id": 2}])
    counts = pipeline.drain(site.broker).stages["both"]
    assert (counts.dead, counts.dropped) == ((2, 0) if late == "error" else (0, 2))
    assert site.queue("graph.errors").size() == (4 if late == "error" else 2)


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


def test_a_batch_of_pairs_is_one_call(site: Site) -> None:
    total = {n: {"id": n, "total": n + 0.5} for n in range(10)}
    site.queue("a").push_many(total.values())
    site.queue("b").push_many([{"id": n, "paid": 1} for n in reversed(range(10))])
    pipeline, join = joining(model=[Order, Payment], batch=4)
    sizes = []

    @join
    def settle(pairs: Any, job: Any) -> Any:
        sizes.append(len(pairs))
        assert len({job.hash_of(item) for item in job.items}) == len(pairs)
        return [_settled(order, payment) for order, payment in pairs]

    def _settled(order: Any, payment: Any) -> Any:
        if order.id == 3:
            return ValueError("not this one")
        return mongoq.Drop() if order.id == 5 else {"open": order.total - payment.paid}

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


def test_who_was_given_up_and_comes_back_is_missed_no_more(site: Site) -> None:
    pipeline, join = joining(timeout=60, late="error")
    join(both)
    for n in range(2):
        site.queue("a").push({"id": 1, "n": n})
    site.drain(pipeline)
    passed(site, pipeline)
    assert site.broker.dead_queue("graph.errors").replay().pushed == 2
    site.drain(pipeline)
    for _ in range(3):
        site.queue("b").push({"id": 1})
    site.drain(pipeline)
    assert len(site.payloads("out")) == 2
    [third] = pipeline.waiting(site.broker)
    assert third.queue == "b", "it is early, and not late"
    assert site.payloads("graph.errors") == []


def test_who_waits_is_known_by_its_queue_whatever_the_order_or_number_of_them(site: Site) -> None:
    def joining_of(*sources: str) -> mongoq.Pipeline:
        pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

        @pipeline.join(sources, to="out", on="id", name="both")
        def both(*payloads: Any) -> Any:
            return mongoq.Move("out", payload=[payload["from"] for payload in payloads])

        return pipeline

    def push(*names: str) -> None:
        for name in names:
            site.queue(name).push({"id": 1, "from": name})

    push("a")
    site.drain(joining_of("a", "b"))
    push("a")
    site.drain(joining_of("b", "a"))
    push("a", "b")
    site.drain(joining_of("a", "b", "c"))
    assert site.payloads("out") == []
    push("c")
    site.drain(joining_of("c", "a", "b"))
    assert site.payloads("out") == [["c", "a", "b"]]
    push("b", "b")
    site.drain(joining_of("b", "a"))
    assert site.payloads("out") == [["c", "a", "b"], ["b", "a"], ["b", "a"]]
    assert (site.broker.queues(), left_over(site)) == (["out"], [])


def test_a_pair_does_not_go_back_to_where_it_was_two(site: Site) -> None:
    for name in "ab":
        site.queue(name).push({"id": 1, "from": name})
    pipeline, join = joining(trail="payloads")

    @join
    def work(a: Any, b: Any) -> Any:
        raise ValueError("broken")

    site.drain(pipeline)
    letters = site.broker.dead_queue("graph.errors")
    result = letters.replay(hop="a")
    assert (result.pushed, result.refused) == (0, 1)
    assert result.refusals[0][1] == "hop: it was joined with others behind 'a'; those would be lost"
    assert letters.replay(hop="graph.work.joined").pushed == 1


def test_a_value_that_cannot_be_joined_stops_a_join_without_an_error_queue(site: Site) -> None:
    id = site.queue("a").push({"n": 1})
    pipeline, join = joining(errors=None)
    join(both)
    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert isinstance(stopped.value.__cause__, mongoq.PartnerMissing)
    assert "cannot be joined: 'id' is missing, or null" in str(stopped.value.__cause__)
    assert site.queue("a").get(id) is not None


def test_who_is_given_up_stops_a_join_without_an_error_queue(site: Site) -> None:
    id = site.queue("a").push({"id": 1})
    pipeline, join = joining(errors=None, timeout=60)
    join(both)
    site.drain(pipeline)
    with pytest.raises(mongoq.StageStopped) as stopped:
        passed(site, pipeline)
    assert isinstance(stopped.value.__cause__, mongoq.PartnerMissing)
    [waiting] = pipeline.waiting(site.broker)
    assert waiting.item.id == id


def test_who_waits_with_odd_fields_stops_nobody_else(site: Site) -> None:
    """Other programs may have written anything to an item; its partner fails, and all others are joined."""
    changes = [{"headers": "x"}, {"priority": "x"}, {"parked": {}}, {"parked": {"at": "x"}}, {"trail": 5}]
    pipeline, join = joining()
    join(both)
    site.queue("a").push_many([{"id": n} for n in range(8)])
    site.drain(pipeline)
    for n, change in enumerate(changes):
        site.raw.update_one({"q": WAITING, "payload.id": n}, {"$set": change})
    site.queue("b").push_many([{"id": n} for n in range(8)])
    site.drain(pipeline)
    joined = {pair["a"]["id"] for pair in site.payloads("out")}
    assert joined >= {5, 6, 7}
    assert len(joined) + site.queue("graph.errors").size() == 8


def test_what_died_before_it_was_joined_comes_along_with_the_others(site: Site) -> None:
    long_ago, number = datetime(2020, 1, 1, tzinfo=UTC), 20
    for name in "ab":
        site.queue(name).push_many([{"id": n} for n in range(number)])
        for _ in range(3):
            assert len(site.queue(name).reserve_many(number)) == number
            site.raw.update_many({"q": name}, {"$set": {"when": long_ago}})  # its lease has ended
    pipeline, join = joining()
    join(both)
    site.drain(pipeline)
    assert len(site.payloads("out")) == number
    assert site.payloads("graph.errors") == []


class _BeforeTransactions(CommandListener):
    """Does something before the first transaction begins."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def started(self, event: Any) -> None:
        if event.command.get("startTransaction") and self._act:
            act, self._act = self._act, None
            act()

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


def test_one_that_is_lost_takes_nobody_with_it(site: Site, uri: str) -> None:
    """Somebody else has an item by the time that it is to be joined; its neighbours are joined all the same."""
    pipeline, join = joining()
    join(both)
    site.queue("a").push_many([{"id": n} for n in range(20)])
    site.drain(pipeline)
    ids = site.queue("b").push_many([{"id": n} for n in range(20)])

    def steal() -> None:
        site.raw.update_one({"_id": ids[3]}, {"$set": {"q": "elsewhere", "token": ObjectId()}})
        site.raw.delete_one({"_id": ids[7]})

    listener = _BeforeTransactions(steal)
    with MongoClient[Any](uri, event_listeners=[listener]) as own:
        pipeline.drain(mongoq.Broker(own[site.raw.database.name][site.raw.name]))
    left = [n for n in range(20) if n not in (3, 7)]
    assert sorted(pair["b"]["id"] for pair in site.payloads("out")) == left
    assert sorted(waiter.item.payload["id"] for waiter in pipeline.waiting(site.broker)) == [3, 7]


def test_several_processes_join_at_once(site: Site) -> None:
    """Runs of their own, in brokers of their own, all of whose transactions meet at the same few values."""
    pipeline, join = joining()
    join(both)
    numbers = 100
    with ExitStack() as stack:
        brokers = [stack.enter_context(site.connect()) for _ in range(3)]
        for broker in brokers:
            stack.enter_context(pipeline.start(broker))
        for n in range(numbers):
            site.queue("a").push({"id": n % 7, "n": n})
            site.queue("b").push({"id": n % 7, "n": n})
        until(lambda: site.queue("out").size() == numbers)
    pairs = site.payloads("out")
    assert sorted(pair["a"]["n"] for pair in pairs) == sorted(pair["b"]["n"] for pair in pairs) == list(range(numbers))
    assert all(pair["a"]["id"] == pair["b"]["id"] for pair in pairs)
    assert (site.broker.queues(), left_over(site)) == (["out"], [])


def test_queues_that_are_full_are_joined_to_the_last(site: Site) -> None:
    """Those who are at the head of one queue alone shift all others."""
    strangers, pairs = 300, 1_000
    site.queue("a").push_many([*({"id": -n} for n in range(1, strangers + 1)), *({"id": n} for n in range(pairs))])
    site.queue("b").push_many([{"id": n} for n in range(pairs)])
    pipeline, join = joining(batch=100)

    @join
    def both(entries: list[Any]) -> list[Any]:
        return [a["id"] for a, b in entries if a == b]

    site.drain(pipeline)
    assert sorted(item.payload for item in site.queue("out").peek(2_000)) == list(range(pairs))
    waiting = sorted(waiter.item.payload["id"] for waiter in pipeline.waiting(site.broker))
    assert waiting == sorted(-n for n in range(1, strangers + 1))
    assert site.broker.queues() == [WAITING, "out"]
