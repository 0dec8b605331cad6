"""Outputs of stages in Spark's executors enter their sequences as with workers: nothing overtakes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from mongoq.pipeline.on_spark.serialization import pack_graph, unpack_graph


def customer(payload: Any) -> str:
    return str(payload["customer"])


def slow(payload: Any) -> Any:
    time.sleep(random.uniform(0, 0.01))
    if payload["n"] == 7 and "again" not in payload:
        return mongoq.Move("raw", payload=payload | {"again": True}, sequence="aside")
    return payload


def split(payload: Any) -> mongoq.Fork:
    time.sleep(random.uniform(0, 0.01))
    return mongoq.Fork([mongoq.Move("out"), mongoq.Move("out", payload={**payload, "copy": True})])


def rows(position: int | None) -> Iterator[mongoq.Record]:
    for n in range(position or 0, 40):
        yield mongoq.Record({"n": n, "customer": f"c{n % 3}"}, position=n + 1, sequence=f"in{n % 3}")


@pytest.mark.prove
def test_items_of_a_sequence_arrive_in_order_at_the_end_of_a_chain(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("chain", errors="chain.errors", outputs="out")
    pipeline.source(to="raw", name="rows")(rows)
    pipeline.stage("raw", to=["checked", "raw"], name="slow", concurrency=4, sequence=customer)(
        lambda payload: one if isinstance(one := slow(payload), mongoq.Move) else mongoq.Move("checked", payload=one)
    )
    pipeline.stage("checked", to="out", name="split", concurrency=4, sequence="keep")(split)
    drained(pipeline)
    assert broker.queue("chain.errors").size() == 0
    queue, arrived = broker.queue("out"), dict[Any, list[tuple[int, bool]]]()
    assert queue.counts().ready == 3
    while items := queue.reserve_many(100):
        for item in items:
            arrived.setdefault(item.sequence, []).append((item.payload["n"], "copy" in item.payload))
        queue.commit_many(items)
    assert [n for n, _ in arrived["c1"] if n == 7] == [7, 7], "the item that went aside has come as well"
    expected = {f"c{k}": [(n, is_copy) for n in range(k, 40, 3) for is_copy in (False, True)] for k in range(3)}
    assert {name: [one for one in each if one[0] != 7] for name, each in arrived.items()} == {
        name: [one for one in each if one[0] != 7] for name, each in expected.items()
    }


def test_the_function_of_a_stage_that_runs_elsewhere_stays_there() -> None:
    lock = threading.Lock()

    def locked(payload: Any) -> str:
        with lock:
            return "a"

    pipeline = mongoq.Pipeline("line", outputs="out")
    pipeline.stage("raw", to="checked", name="here", sequence=customer)(slow)
    pipeline.stage("checked", to="out", name="elsewhere", sequence=locked)(slow)
    here, elsewhere = unpack_graph(pack_graph(pipeline.graph.only(["here"]))).stages
    assert here.sequence({"customer": "ann"}) == "ann"
    assert elsewhere.sequence is None
