"""Stages of pipelines let the next item of a sequence follow, however an item leaves their queues."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.pipeline.conftest import QUICK, Site, every_engine


def pushed(site: Site, name: str = "raw", number: int = 12) -> None:
    sequences = ["even" if n % 2 == 0 else "odd" for n in range(number)]
    site.queue(name).push_many([{"n": n, "kind": "ab"[n // 2 % 2]} for n in range(number)], sequences=sequences)


def left_over(site: Site) -> list[Any]:
    """Return what is left of sequences: control documents, and items with a place."""
    return list(site.raw.find({"$or": [{"_id": {"$regex": "^sequence:"}}, {"place": {"$exists": True}}]}))


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


def test_a_stage_that_fails_holds_the_sequence_of_its_letter(site: Site) -> None:
    pushed(site)
    site.queue("raw").configure(on_dead="hold")
    pipeline, sound = mongoq.Pipeline("line", errors="line.errors", outputs="out"), set[int]()

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any) -> Any:
        if payload["n"] in {0, 3} - sound:
            raise ValueError("no")
        return payload if payload["n"] != 5 or payload["n"] in sound else mongoq.Dead("not this one")

    site.drain(pipeline)
    letters = site.queue("line.errors").peek(9)
    assert sorted((letter.payload["n"], letter.sequence) for letter in letters) == [(0, "even"), (3, "odd")]
    assert [payload["n"] for payload in site.payloads("out")] == [1]
    sound |= {0, 3}
    assert site.broker.dead_queue("line.errors").replay().pushed == 2
    site.drain(pipeline)
    assert [letter.payload["n"] for letter in site.queue("line.errors").peek(9)] == [5]
    assert site.broker.dead_queue("line.errors").purge() == 1
    site.drain(pipeline)
    assert sorted(payload["n"] for payload in site.payloads("out")) == [n for n in range(12) if n != 5]
    assert left_over(site) == []


def test_a_join_that_buries_an_item_holds_its_sequence(site: Site) -> None:
    large = "x" * (9 * 1024 * 1024)
    site.queue("a").configure(on_dead="hold")
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], to="out", on="n", max_retries=0)
    def both(a: Any, b: Any) -> Any:
        return a

    site.queue("b").push_many([{"n": 1, "x": large}, {"n": 2}])
    site.drain(pipeline)
    site.queue("a").push_many([{"n": 1, "x": large}, {"n": 2}], sequence="s")
    site.drain(pipeline)
    letters = {letter.sequence: letter for letter in site.queue("graph.errors").peek(9)}
    assert letters.keys() == {"s", None}
    assert site.queue("a").counts().blocked == 1
    assert site.payloads("out") == []
    assert site.queue("graph.errors").remove(letters["s"].id)
    site.drain(pipeline)
    assert [payload["n"] for payload in site.payloads("out")] == [2]
    assert left_over(site) == []


# --- outputs in sequences -------------------------------------------------------------------------


def customer(payload: Any) -> str | None:
    return payload["customer"] if payload["customer"] != "free" else None


def arrivals(site: Site, name: str) -> dict[Any, list[int]]:
    """Return the numbers of the items that a queue hands out, by their sequences, and take them out."""
    found: dict[Any, list[int]] = {}
    while items := site.queue(name).reserve_many(100):
        for item in items:
            found.setdefault(item.sequence, []).append(item.payload["n"])
        site.queue(name).commit_many(items)
    return found


def chained(**options: Any) -> tuple[mongoq.Pipeline, dict[str, list[int]]]:
    """Return a chain of two stages with several workers, whose calls take times of their own, and what the end gets."""
    pipeline, seen = mongoq.Pipeline("chain", errors="chain.errors"), dict[str, list[int]]()
    pauses, failed = random.Random(7), set[int]()

    @pipeline.stage("raw", to="checked", concurrency=4, retry=QUICK, **options)
    def check(payload: Any) -> Any:
        time.sleep(pauses.uniform(0, 0.01))
        if payload["n"] % 7 == 0 and payload["n"] not in failed:
            failed.add(payload["n"])
            raise ValueError("once")
        return payload | {"checked": True}

    @pipeline.stage("checked", to="priced", concurrency=4, sequence="keep")
    def price(payload: Any) -> mongoq.Move:
        time.sleep(pauses.uniform(0, 0.01))
        return mongoq.Move("priced", patch={"$set": {"price": 1}})

    @pipeline.sink("priced", concurrency=4)
    def load(payload: Any) -> None:
        assert (payload["checked"], payload["price"]) == (True, 1)
        seen.setdefault(payload["customer"], []).append(payload["n"])

    return pipeline, seen


@every_engine
def test_items_of_a_sequence_arrive_in_order_at_the_end_of_a_chain(site: Site) -> None:
    names = [f"c{n % 5}" for n in range(60)]
    site.queue("raw").push_many([{"n": n, "customer": name} for n, name in enumerate(names)], sequences=names)
    pipeline, seen = chained(sequence="keep")
    site.drain(pipeline)
    assert seen == {f"c{n}": list(range(n, 60, 5)) for n in range(5)}
    assert site.raw is None or left_over(site) == []


def test_a_function_of_the_payload_chooses_the_sequence(site: Site) -> None:
    site.queue("raw").push_many([{"n": n, "customer": ["ann", "bob", "free"][n % 3]} for n in range(30)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", sequence=customer)
    def work(payload: Any) -> Any:
        return payload if payload["n"] % 2 else mongoq.Move("out")

    site.drain(pipeline)
    assert site.queue("out").counts().blocked == 18
    assert arrivals(site, "out") == {
        "ann": list(range(0, 30, 3)), "bob": list(range(1, 30, 3)), None: list(range(2, 30, 3)),
    }  # fmt: skip
    assert left_over(site) == []


def test_several_workers_begin_the_same_sequences(site: Site) -> None:
    site.queue("raw").push_many([{"n": n, "customer": f"c{n // 4}"} for n in range(80)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", concurrency=4, sequence=customer)
    def work(payload: Any) -> Any:
        return payload

    @pipeline.stage("raw2", to="out", concurrency=4, sequence=customer)
    def fork(payload: Any) -> Any:
        return mongoq.Fork([mongoq.Move("out")])

    site.queue("raw2").push_many([{"n": n, "customer": f"c{n // 4}"} for n in range(80)])
    site.drain(pipeline)
    assert site.payloads("line.errors") == []
    numbers = arrivals(site, "out")
    assert {name: sorted(each) for name, each in numbers.items()} == {
        f"c{n}": sorted([*range(4 * n, 4 * n + 4)] * 2) for n in range(20)
    }
    assert left_over(site) == []


def test_a_move_of_the_handler_goes_before_the_function(site: Site) -> None:
    site.queue("raw").push({"n": 1, "customer": "ann"}, sequence="x")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    pipeline.stage("raw", to="out", name="work", sequence=customer)(lambda _: mongoq.Move("out", sequence="own"))
    site.drain(pipeline)
    assert arrivals(site, "out") == {"own": [1]}


def test_outputs_of_a_fork_enter_sequences(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs=["a", "b"])

    @pipeline.stage("raw", to=["a", "b"], concurrency=4, sequence="keep")
    def split(payload: Any) -> mongoq.Fork:
        n = payload["n"]
        return mongoq.Fork(
            [
                mongoq.Move("a"),
                mongoq.Move("a", payload={"n": n + 100}),
                mongoq.Move("b", payload={"n": n}, sequence="one"),
            ]
        )

    site.drain(pipeline)
    counts = site.queue("a").counts()
    assert (counts.ready, counts.blocked) == (2, 22)
    both = {name: [n + more for n in range(name == "odd", 12, 2) for more in (0, 100)] for name in ("even", "odd")}
    assert arrivals(site, "a") == both
    [(name, numbers)] = arrivals(site, "b").items()
    assert (name, sorted(numbers)) == ("one", list(range(12)))
    assert left_over(site) == []
    stats = site.broker.stats()
    assert (stats["a"].put, stats["b"].put) == (24, 12)


def test_a_fork_into_the_sequence_that_its_item_leaves(site: Site) -> None:
    site.queue("raw").push_many([{"n": n, "round": 0} for n in range(3)], sequence="a")
    pipeline, seen = mongoq.Pipeline("graph", errors="graph.errors", inputs="raw"), list[tuple[int, int]]()

    @pipeline.stage("raw", to="raw", sequence="keep")
    def again(payload: Any) -> mongoq.Fork:
        seen.append((payload["round"], payload["n"]))
        return mongoq.Fork([mongoq.Move("raw", payload=payload | {"round": 1}) if payload["round"] == 0 else None])

    site.drain(pipeline)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert left_over(site) == []


def test_joined_items_enter_the_sequence_of_a_function(site: Site) -> None:
    for name in ("a", "b"):
        site.queue(name).push_many([{"n": n, "customer": "ann"} for n in range(6)], sequence="in")
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], to="out", on="n", sequence=customer)
    def both(a: Any, b: Any) -> Any:
        return a | b

    site.drain(pipeline)
    [(name, numbers)] = arrivals(site, "out").items()
    assert (name, sorted(numbers)) == ("ann", list(range(6)))
    assert left_over(site) == []


def test_a_batch_has_the_sequence_of_each_of_its_outputs(site: Site) -> None:
    site.queue("raw").push_many([{"n": n, "customer": "ab"[n % 2]} for n in range(20)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", batch=5, sequence=customer)
    def work(payloads: list[Any]) -> list[Any]:
        return payloads

    site.drain(pipeline)
    assert arrivals(site, "out") == {"a": list(range(0, 20, 2)), "b": list(range(1, 20, 2))}


def test_an_error_that_counts_as_success_keeps_the_sequence(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", success_on=KeyError, sequence="keep")
    def work(payload: Any) -> Any:
        raise KeyError(payload["n"])

    site.drain(pipeline)
    assert arrivals(site, "out") == {"even": [0, 2, 4, 6, 8, 10], "odd": [1, 3, 5, 7, 9, 11]}


@pytest.mark.parametrize(
    ("how", "result", "problem"),
    [
        ("payload", 5, "its sequence: a string, not int; return a text of 1 to 1,024 bytes, such as 'customer-17'"),
        ("move", "", "its sequence: cannot be empty"),
        ("fork", "x" * 1025, "its sequence: 1,025 bytes"),
        ("success", "\ud800", "its sequence: cannot hold lone surrogates"),
        ("payload", KeyError("customer"), "its sequence= raised KeyError"),
    ],
    ids=["payload", "move", "fork", "success", "raises"],
)
def test_a_function_that_gives_no_sequence_fails_its_item_alone(
    site: Site, how: str, result: Any, problem: str
) -> None:
    site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    def choose(payload: Any) -> Any:
        if payload["n"] == 2:
            return "good"
        if isinstance(result, Exception):
            raise result
        return result

    @pipeline.stage("raw", to="out", max_retries=0, sequence=choose, success_on=ZeroDivisionError)
    def work(payload: Any) -> Any:
        match how:
            case "payload":
                return payload
            case "move":
                return mongoq.Move("out")
            case "fork":
                return mongoq.Fork([mongoq.Move("out")])
            case _:
                raise ZeroDivisionError

    site.drain(pipeline)
    [letter] = site.queue("line.errors").peek(9)
    assert letter.payload == {"n": 1}
    assert letter.error is not None
    assert "stage 'work' has no sequence for an output: " in letter.error.message
    assert problem in letter.error.message
    assert arrivals(site, "out") == {"good": [2]}
    assert left_over(site) == []


def test_a_patch_has_no_payload_for_a_function(site: Site) -> None:
    site.queue("raw").push({"n": 1, "customer": "ann"})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    patch = mongoq.Move("out", patch={"$set": {"customer": "bob"}})
    pipeline.stage("raw", to="out", name="work", max_retries=0, sequence=customer)(lambda _: patch)
    site.drain(pipeline)
    [letter] = site.queue("line.errors").peek(9)
    assert letter.error is not None
    assert "stage 'work' patched an item, and its sequence= is a function" in letter.error.message


def test_what_is_run_at_most_once_gives_its_outputs_no_order(site: Site) -> None:
    site.queue("raw").push({"n": 1})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    move = mongoq.Move("out", sequence="a")
    pipeline.stage("raw", to="out", delivery="at-most-once", name="work")(lambda _: move)
    site.drain(pipeline)
    assert site.payloads("out") == []
    assert left_over(site) == []


# --- sources --------------------------------------------------------------------------------------


def test_records_of_a_source_enter_sequences(site: Site) -> None:
    pipeline, seen = mongoq.Pipeline("line"), dict[str | None, list[int]]()

    @pipeline.source(to="raw", batch=7)
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        for n in range(position or 0, 40):
            sequence = ["a", "b", None][n % 3]
            yield mongoq.Record({"n": n, "name": sequence}, position=n + 1, sequence=sequence, priority=n % 2)

    @pipeline.sink("raw", concurrency=4)
    def load(payload: Any) -> None:
        seen.setdefault(payload["name"], []).append(payload["n"])

    site.drain(pipeline)
    assert (seen["a"], seen["b"]) == (list(range(0, 40, 3)), list(range(1, 40, 3)))
    assert sorted(seen[None]) == list(range(2, 40, 3))
    assert left_over(site) == []
    assert site.broker.stats()["raw"].put == 40


def test_a_record_with_a_sequence_that_cannot_be_used_stops_its_source(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", outputs="raw")

    @pipeline.source(to="raw")
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        yield mongoq.Record({"n": 0}, position=1, sequence="a")
        yield mongoq.Record({"n": 1}, position=2, sequence="")

    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert "sequence: cannot be empty" in str(stopped.value.__cause__)
    assert arrivals(site, "raw") == {"a": [0]}


def test_a_record_for_a_topic_has_no_sequence(site: Site) -> None:
    site.broker.bind("raw", "copy")
    pipeline = mongoq.Pipeline("line", outputs="raw")

    @pipeline.source(to="raw")
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        yield mongoq.Record({"n": 0}, position=1, sequence="a")

    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert "sequence: 'raw' is a topic" in str(stopped.value.__cause__)
    assert site.queue("copy").size() == 0
    assert left_over(site) == []


def test_a_queue_notes_its_sequences_before_the_first_item_comes(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.source(to="raw")
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        yield mongoq.Record({"n": 0}, position=1, sequence="a")

    @pipeline.stage("raw", to="out", sequence="keep")
    def fork(payload: Any) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("out")])

    site.drain(pipeline)
    assert [site.raw.find_one({"_id": f"queue:{name}"})["sequences"] for name in ("raw", "out")] == [True, True]


# --- checks ---------------------------------------------------------------------------------------


async def coroutine(payload: Any) -> str:
    return "a"


def generator(payload: Any) -> Iterator[str]:
    yield "a"


def test_a_stage_whose_sequence_cannot_be() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"sequence": "kept"},
            "sequence: a function of the payload, or 'keep' for the sequence of the input, not 'kept'",
        ),
        ({"sequence": 5}, "sequence: a function of the payload, or 'keep' for the sequence of the input, not 5"),
        ({"sequence": coroutine}, "sequence: a plain function that takes one argument"),
        ({"sequence": generator}, "sequence: a plain function that takes one argument"),
        ({"sequence": lambda: "a"}, "sequence: a plain function that takes one argument"),
        ({"sequence": "keep", "delivery": "at-most-once"}, "sequence: what is run at most once leaves its place"),
        (
            {"where": {"n": 1}, "otherwise": mongoq.Move("out", sequence="a")},
            "otherwise: a filter moves no item into a sequence; let a handler do it",
        ),
    ]
    for options, fault in cases:
        pipeline = mongoq.Pipeline("line", outputs="out")
        pipeline.stage("raw", to="out", name="work", **options)(lambda payload: payload)
        with pytest.raises(mongoq.GraphInvalid) as invalid:
            pipeline.check()
        [only] = invalid.value.faults
        assert only.startswith(f"stage 'work': {fault}")


def test_a_join_cannot_keep_a_sequence() -> None:
    pipeline = mongoq.Pipeline("line", outputs="out")
    pipeline.join(["a", "b"], on="n", to="out", name="both", sequence="keep")(lambda a, b: a)
    with pytest.raises(mongoq.GraphInvalid, match="'both': sequence: the inputs of a join have several"):
        pipeline.check()


def test_what_ends_here_enters_no_sequence() -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.join(["a", "b"], on="n", name="both", sequence=customer)(lambda a, b: a)
    with pytest.raises(mongoq.GraphInvalid, match="'both': sequence: items end here"):
        pipeline.check()


def test_a_standalone_server_is_refused_before_anything_is_written() -> None:
    pipeline = mongoq.Pipeline("line", outputs="out")
    pipeline.stage("raw", to="out", name="work", sequence="keep")(lambda payload: payload)
    with EmbeddedServer(replica_set=None) as server, mongoq.connect(server.uri) as broker:
        broker.queue("raw").push({"n": 1})
        with pytest.raises(mongoq.TransactionsUnavailable) as refused:
            pipeline.drain(broker)
        assert refused.value.needed_by == ("sequences of stage 'work'",)
        assert broker.queue("raw").size() == 1


# --- other views of a pipeline --------------------------------------------------------------------


def recipe(sequence: Any) -> dict[str, Any]:
    stage = {"name": "work", "from": "raw", "to": "out", "handler": "tests.pipeline.stations:pass_on"}
    return {"name": "line", "outputs": "out", "stages": [{**stage, "sequence": sequence}]}


def test_a_recipe_names_the_function_or_keeps_the_sequence(site: Site) -> None:
    site.queue("raw").push({"n": 1, "customer": "ann"}, sequence="x")
    by_function = mongoq.Pipeline.from_recipe(recipe(f"{__name__}:customer"))
    site.drain(by_function)
    assert arrivals(site, "out") == {"ann": [1]}
    site.queue("raw").push({"n": 2, "customer": "ann"}, sequence="x")
    keeps = mongoq.Pipeline.from_recipe(recipe("keep"))
    site.drain(keeps)
    assert arrivals(site, "out") == {"x": [2]}
    [difference] = by_function.compare(keeps)
    assert (difference.field, difference.before, difference.after) == ("sequence", f"{__name__}:customer", "keep")
    assert f"  sequence    by {__name__}:customer\n" in by_function.describe() + "\n"
    assert "  sequence    'keep'\n" in keeps.describe() + "\n"
