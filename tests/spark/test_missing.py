"""A queue that does not exist is an error; one that is empty is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import mongoq
from mongoq.errors import ArgumentInvalid


@pytest.fixture
def count(reader: Any) -> Callable[..., int]:
    """Count what a read shows, without a query."""

    def count(**options: Any) -> int:
        source = reader(**options)
        return sum(batch.num_rows for partition in source.partitions() for batch in source.read(partition))

    return count


def test_a_name_with_a_slip_in_it_is_an_error_that_names_what_there_is(store: Any, count: Any) -> None:
    for queue in ("orders", "orders.dead", "refunds"):
        store.add("x", queue=queue)
    full = store.collection.full_name
    with pytest.raises(ArgumentInvalid) as caught:
        count(queue="ordres")
    assert str(caught.value) == (
        f"queue: there is no queue 'ordres' in {full}, which has 'orders', 'orders.dead', 'refunds'; correct it, or "
        f"say missing=empty if it may be missing"
    )
    assert count(queue="ordres", missing="EMPTY") == 0


def test_of_many_queues_the_closest_are_named(store: Any, count: Any) -> None:
    for n in range(30):
        store.add("x", queue=f"stage.{n:02}")
    with pytest.raises(ArgumentInvalid, match=r"has ('stage.\d\d', ){4}'stage.\d\d' and others; correct it") as caught:
        count(queue="stage.7")
    assert "'stage.07'" in str(caught.value)


@pytest.mark.parametrize("place", [{"database": "nowhere"}, {"collection": "nothing"}])
def test_a_collection_without_items_is_said_to_have_none(store: Any, count: Any, place: Any) -> None:
    store.add("x")
    name = f"nowhere.{store.collection.name}" if "database" in place else "spark_tests.nothing"
    with pytest.raises(ArgumentInvalid, match=f"no queue 'orders' in {name}, which holds no items at all; correct it"):
        count(**place)
    assert count(**place, missing="empty") == 0


def test_each_of_several_queues_is_looked_for(store: Any, count: Any) -> None:
    store.add("x")
    store.add("x", queue="refunds", when=None, processed=store.now)
    several = {"queue": None, "queues": '["orders", "refunds", "invoices"]'}
    with pytest.raises(ArgumentInvalid, match="queues: there is no queue 'invoices' in"):
        count(**several)
    assert count(**several, missing="empty") == 1
    assert count(queue=None, queues='["orders", "refunds"]', view="all") == 2


def test_a_prefix_that_no_queue_has_is_an_error(store: Any, count: Any) -> None:
    store.add("x", queue="orders.eu")
    store.add("x", queue="done", when=None, processed=store.now)
    store.add("x", queue="failed.dead")
    with pytest.raises(ArgumentInvalid, match="prefix: there is no queue whose name begins with 'refunds.' in"):
        count(queue=None, prefix="refunds.")
    assert count(queue=None, prefix="refunds.", missing="empty") == 0
    assert count(queue=None, prefix="orders.", view="dead") == 0
    assert count(queue=None, prefix="d") == 0
    assert count(queue=None, prefix="failed") == 0


@pytest.mark.parametrize("view", ["live", "ready", "reserved", "history", "dead", "all"])
def test_a_queue_is_known_by_its_items_whatever_the_view(store: Any, count: Any, view: str) -> None:
    store.add("x", when=store.now + timedelta(hours=1))
    store.add("x", queue="processed", when=None, processed=store.now)
    store.add("x", queue="died.dead")
    for queue in ("orders", "processed", "died"):
        assert count(queue=queue, view=view) in (0, 1)


def test_a_queue_of_which_only_remembered_ids_are_left_is_known(store: Any, count: Any) -> None:
    store.collection.insert_one({"q": "orders", "processed": store.now, "once": store.now})
    assert count() == 0


def test_a_dead_queue_may_be_missing_while_its_queue_is_not(store: Any, count: Any) -> None:
    store.add("x")
    assert count(view="dead") == 0
    assert count(queue="orders.dead") == 0
    with pytest.raises(ArgumentInvalid, match="no queue 'refunds.dead'"):
        count(queue="refunds.dead")


def test_a_queue_is_known_by_what_was_said_of_it(store: Any, count: Any) -> None:
    store.collection.drop_indexes()
    with mongoq.Broker(store.collection) as broker:
        broker.queue("configured").configure(lease=5)
        broker.queue("paused").pause()
        broker.queue("mortal").configure(max_retries=3, dead="graveyard")
        broker.bind("topic", "bound")
    for queue in ("configured", "paused", "mortal", "graveyard", "bound"):
        assert count(queue=queue) == 0
    for queue in ("configure", "topic", "queue:configured"):
        with pytest.raises(ArgumentInvalid, match="there is no queue"):
            count(queue=queue)


def test_a_queue_of_which_only_counters_are_left_is_known(store: Any, count: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        queue = broker.queue("counted", history=None)
        queue.push("x")
        queue.commit(queue.reserve())
    store.collection.delete_one({"_id": "queue:counted"})
    assert {each["_id"] for each in store.collection.find()} == {"schema:mongoq", "stats:counted"}
    assert count(queue="counted") == 0


def test_spark_says_so_before_a_task_starts(store: Any, load: Any) -> None:
    store.add("x", queue="refunds")
    with pytest.raises(Exception, match="there is no queue 'orders' in .*, which has 'refunds'") as caught:
        load("a int").collect()
    assert "Job aborted" not in str(caught.value)
    with pytest.raises(Exception, match="there is no queue 'orders' in .*, which has 'refunds'"):
        load(inferSchema="true")


def test_looking_costs_a_few_keys(store: Any) -> None:
    from mongoq.spark.read import views
    from mongoq.spark.read.views import QueueSelection
    from mongoq.spark.scan import Scan

    store.add_many(2_000, queue="other")
    asked: list[Any] = []

    class Watched(Scan):
        def has(self, filter: Any, *, hint: str | None = None) -> bool:
            asked.append((filter, hint))
            return super().has(filter, hint=hint)

    watched = Watched(store.uri, store.collection.database.name, store.collection.name)
    with watched, pytest.raises(ArgumentInvalid):
        views.refuse_unknown(watched, QueueSelection(("nobody",)))
    for filter, hint in asked:
        query = {"find": store.collection.name, "filter": filter, **({"hint": hint} if hint else {})}
        stats = store.collection.database.command("explain", query, verbosity="executionStats")["executionStats"]
        assert stats["totalKeysExamined"] <= 2
        assert stats["totalDocsExamined"] == 0
    assert len(asked) >= 5


def test_the_way_is_one_of_two(count: Any) -> None:
    with pytest.raises(ArgumentInvalid, match="missing: one of fail, empty, not 'ignore'"):
        count(missing="ignore")
