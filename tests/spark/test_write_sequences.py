"""Rows with a sequence: pushed in the order of their partition, and once, however often they are written."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.spark.conftest import close_brokers
from tests.spark.tables import Target

DDL = "n int, _sequence string"


def rows(number: int) -> list[tuple[Any, ...]]:
    """Return rows of three sequences, and of none."""
    return [(n, ["a", "b", "c", None][n % 4]) for n in range(number)]


def arrivals(target: Target, name: str = "orders") -> dict[Any, list[int]]:
    """Return the numbers of the items that a queue hands out, by their sequences, and take them out."""
    queue, found = target.broker.queue(name), dict[Any, list[int]]()
    while items := queue.reserve_many(1_000):
        for item in items:
            found.setdefault(item.sequence, []).append(item.payload["n"])
        queue.commit_many(items)
    return found


def in_order(number: int) -> dict[Any, list[int]]:
    return {name: list(range(place, number, 4)) for place, name in enumerate(["a", "b", "c", None])}


def sorted_without(found: dict[Any, list[int]]) -> dict[Any, list[int]]:
    """Return what has arrived; items without a sequence have no order."""
    return {name: sorted(numbers) if name is None else numbers for name, numbers in found.items()}


def test_rows_of_a_sequence_are_handed_out_in_the_order_of_the_partition(target: Target) -> None:
    target.write(DDL, rows(100)[:30], rows(100)[30:])
    counts = target.broker.queue("orders").counts()
    assert (counts.ready, counts.blocked) == (28, 72)
    assert sorted_without(arrivals(target)) == in_order(100)


def test_the_order_holds_for_rows_of_other_options(target: Target) -> None:
    ddl = "n int, _sequence string, _priority int, _headers string"
    each = [(n, "a", n % 3, '{"h": 1}' if n % 2 else None) for n in range(40)]
    target.write(ddl, each, batchSize=7)
    assert arrivals(target) == {"a": list(range(40))}


def test_a_table_that_is_written_again_pushes_nothing_twice(target: Target) -> None:
    for _ in range(3):
        target.write(DDL, rows(40))
    for part in (rows(40), rows(40)):
        target.write(DDL, part, idColumn="n", to="by id")
    assert sorted_without(arrivals(target)) == sorted_without(arrivals(target, "by id")) == in_order(40)
    target.write(DDL, rows(40))
    assert target.broker.queue("orders").size() == 0


def test_rows_that_hold_a_reservation_enter_a_sequence_in_their_order(target: Target) -> None:
    queue = target.broker.queue("raw")
    queue.push_many([{"n": n} for n in range(12)])
    items = sorted(queue.reserve_many(12), key=lambda item: -item.payload["n"])
    held = [(str(item.id), str(item.token), "ab"[item.payload["n"] % 2]) for item in items]
    target.write("_id string, _token string, _sequence string", held)
    assert arrivals(target) == {"a": [10, 8, 6, 4, 2, 0], "b": [11, 9, 7, 5, 3, 1]}


def test_a_topic_takes_no_row_with_a_sequence(target: Target) -> None:
    target.broker.bind("orders", "mail")
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence: 'orders' is a topic"):
        target.write(DDL, rows(4))
    assert target.documents == []


def test_a_standalone_server_gets_no_row_with_a_sequence(target: Target) -> None:
    with EmbeddedServer(replica_set=None) as server:
        place = {"uri": server.uri, "database": "test", "collection": "mongoq"}
        with pytest.raises(mongoq.TransactionsUnavailable, match=r"sequences \(sequence=\) need a replica set"):
            target.write(DDL, rows(4), **place)
        with mongoq.connect(server.uri, database="test") as broker:
            assert broker.queue("orders").size() == 0
            target.write("n int, _sequence string", [(1, None)], **place)
            assert broker.queue("orders").size() == 1
        close_brokers()


def test_spark_writes_the_rows_of_a_partition_in_order(spark: Any, target: Target) -> None:
    frame = spark.range(120).selectExpr("cast(id AS int) n", "concat('s', id % 5) _sequence")
    ordered = frame.repartition(2, "_sequence").sortWithinPartitions("n")
    writer = ordered.write.format("mongoq").options(**target.options(to="orders", label="once")).mode("append")
    writer.save()
    writer.save()
    assert arrivals(target) == {f"s{k}": list(range(k, 120, 5)) for k in range(5)}
