from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.errors import ArgumentInvalid

HOUR = timedelta(hours=1)


@pytest.fixture
def names(rows: Any) -> Any:
    """Return the payloads of a view, sorted."""

    def names(**options: Any) -> list[str]:
        return sorted(payload.strip('"') for (payload,) in rows("payload string", **options))

    return names


@pytest.fixture
def mixed(store: Any) -> Any:
    """One item of each kind, neighbours in other queues, and control documents."""
    past = {"processed": store.now - HOUR, "when": None, "settled": ObjectId()}
    store.add("ready")
    store.add("reserved", when=store.now + HOUR, reserved=True, token=ObjectId(), by="host:1:ab")
    store.add("done", **past)
    store.add("dead", queue="orders.dead")
    store.add("dead and done", queue="orders.dead", **past)
    store.add("other", queue="invoices")
    stub = {"_id": ObjectId(), "q": "orders", "processed": store.now, "once": store.now + HOUR}
    control = {"_id": "queue:orders", "paused": True, "when": store.now, "payload": "control"}
    store.collection.insert_many([stub, control])
    return store


def test_a_view_shows_its_items_and_neither_stubs_nor_control_documents(mixed: Any, names: Any) -> None:
    for view, expected in {
        None: ["ready", "reserved"],
        "LIVE": ["ready", "reserved"],
        "history": ["done"],
        "dead": ["dead"],
        "all": ["done", "ready", "reserved"],
    }.items():
        assert names(view=view) == names(view=view, partitions=3) == expected


def test_the_dead_view_finds_letters_whatever_their_queue_is_called(store: Any, names: Any) -> None:
    for name, died in (("a", "raw"), ("b", "raw"), ("c", "other")):
        origin = {"queue": died, "reason": "x", "attempts": 1, "at": store.now, "stage": f"stage of {died}"}
        store.add(name, queue="line.errors", when=store.now, origin=origin)
    for options in ({"queue": "raw"}, {"queue": "stage of raw"}, {"queue": None, "queues": '["line.errors", "raw"]'}):
        assert names(**options, view="dead") == ["a", "b", "c"]
    store.add("d", queue="graves")
    with mongoq.Broker(store.collection) as broker:
        broker.queue("mortal").configure(dead="graves")
    assert names(queue="mortal", view="dead") == ["d"]


def test_the_dead_view_of_a_dead_queue_is_that_queue(mixed: Any, names: Any) -> None:
    assert names(queue="orders.dead", view="dead") == ["dead"]
    assert names(queue="orders.dead", view="history") == ["dead and done"]


@pytest.fixture
def states(store: Any) -> Any:
    """An item in each state."""
    lease: dict[str, Any] = {"reserved": True, "token": ObjectId()}
    store.add("ready")
    store.add("scheduled", when=store.now + HOUR)
    store.add("reserved", when=store.now + HOUR, **lease)
    store.add("expired", **lease)
    store.add("processed", when=None, processed=store.now - HOUR, settled=ObjectId())
    return store


def test_each_live_state_is_a_view(states: Any, rows: Any) -> None:
    for state in ("ready", "scheduled", "reserved", "expired"):
        assert rows("_state string, payload string", view=state) == [(state, f'"{state}"')]
    shown = rows("_state string, payload string", view="all", partitions=2)
    assert {state for state, _ in shown} == {payload.strip('"') for _, payload in shown}
    assert len(shown) == 5


@pytest.fixture
def many(store: Any) -> Any:
    """Items of several queues, live and dead."""
    for queue in ("orders", "orders.eu", "orders.us", "orders/eu", "order", "refunds", "Orders.eu"):
        store.add(queue, queue=queue)
        store.add(f"{queue} in the past", queue=queue, when=None, processed=store.now, settled=ObjectId())
        store.add(f"{queue} dead", queue=f"{queue}.dead")
    return store


def test_several_queues_are_one_table(many: Any, names: Any) -> None:
    for partitions in (1, 3):
        options = {"queue": None, "queues": '["orders", "refunds", "nobody", "orders"]', "partitions": partitions}
        assert names(**options, missing="empty") == ["orders", "refunds"]
        assert names(**options, missing="empty", view="history") == ["orders in the past", "refunds in the past"]
        assert names(**options, missing="empty", view="dead") == ["orders dead", "refunds dead"]


def test_queues_whose_names_begin_alike_are_one_table(many: Any, names: Any) -> None:
    for partitions in (1, 3):
        options = {"queue": None, "prefix": "orders.", "partitions": partitions}
        assert names(**options) == ["orders.eu", "orders.us"]
        assert names(**options, view="history") == ["orders.eu in the past", "orders.us in the past"]
        assert names(**options, view="dead") == ["orders.eu dead", "orders.us dead"]
    assert names(queue=None, prefix="orders") == ["orders", "orders.eu", "orders.us", "orders/eu"]


def test_a_period_takes_history_by_when_it_was_processed_and_others_by_when_they_are_eligible(
    store: Any, names: Any
) -> None:
    for hours in range(4):
        moment = store.now - hours * HOUR
        store.add(f"live {hours}", when=moment)
        store.add(f"done {hours}", when=None, processed=moment, settled=ObjectId())
    two, one = ((store.now - hours * HOUR).isoformat() for hours in (2, 1))
    for partitions in (1, 3):
        assert names(view="history", since=two, until=one, partitions=partitions) == ["done 2"]
        assert names(view="live", since=one, partitions=partitions) == ["live 0", "live 1"]
        assert names(view="all", until=two, partitions=partitions) == ["done 3", "live 3"]
        assert names(view="ready", since=one, until=store.now.isoformat(), partitions=partitions) == ["live 1"]
    assert names(since=one, until=one) == []


def test_each_field_of_the_envelope_is_a_column(store: Any, load: Any) -> None:
    token, origin_id = ObjectId(), ObjectId()
    item = store.add(
        {"a": 1},
        when=store.now + HOUR,
        priority=-5,
        attempts=2,
        reserved=True,
        token=token,
        by="host:1:ab",
        key="k",
        headers={"trace": "t", "at": store.now},
        error={"type": "ValueError", "message": "bad", "at": store.now},
        origin={
            "queue": "raw", "id": origin_id, "reason": "no plane", "attempts": 3, "key": None, "at": store.now,
            "stage": "fly", "delivery": "d1",
        },
        once=store.now + 2 * HOUR,
    )  # fmt: skip
    frame = load()
    assert frame.columns == [
        "_id", "_q", "_state", "_when", "_pushed", "_priority", "_attempts", "_reserved", "_token", "_by", "_key",
        "_headers", "_error", "_origin", "_once", "_settled", "_processed", "_expires", "payload",
    ]  # fmt: skip
    row = frame.collect()[0].asDict(recursive=True)
    now = store.now.replace(tzinfo=None)
    assert json.loads(row.pop("_headers")) == {"trace": "t", "at": now.isoformat() + ".000Z"}
    assert json.loads(row.pop("payload")) == {"a": 1}
    assert {name: value for name, value in row.items() if name not in ("_when", "_once", "_error", "_origin")} == {
        "_id": str(item), "_q": "orders", "_state": "reserved", "_priority": -5, "_attempts": 2,
        "_reserved": True, "_token": str(token), "_by": "host:1:ab", "_key": "k",
        "_settled": None, "_processed": None, "_expires": None, "_pushed": None,
    }  # fmt: skip
    columns = load().selectExpr(
        "_when = timestamp_seconds({0} + 3600) AND _once = timestamp_seconds({0} + 7200)".format(
            int(store.now.timestamp())
        ),
        f"_error.at = timestamp_seconds({int(store.now.timestamp())})",
        "_error.type", "_error.message", "_origin.queue", "_origin.id", "_origin.reason", "_origin.attempts",
        "_origin.key", "_origin.stage", "_origin.delivery",
    )  # fmt: skip
    assert tuple(columns.collect()[0]) == (
        True, True, "ValueError", "bad", "raw", str(origin_id), "no plane", 3, None, "fly", "d1",
    )  # fmt: skip


def test_when_an_item_came_is_shown_until_somebody_has_had_it_and_then_if_a_stream_noted_it(
    store: Any, rows: Any
) -> None:
    came, later = store.now - 3 * HOUR, store.now - HOUR
    store.add("new", when=came)
    store.add("delayed", when=store.now + HOUR)
    store.add("given back", when=came, pushed=later)
    store.add("had", when=later, attempts=1)
    store.add("had after a stream", when=later, attempts=1, pushed=came)
    store.add("held", when=store.now + HOUR, reserved=True, attempts=1)
    store.add("held by a stream", when=store.now + HOUR, reserved=True, attempts=1, pushed=came)
    store.add("done", when=None, processed=store.now, attempts=1)
    store.add("done by a stream", when=None, processed=store.now, attempts=1, pushed=came)
    read = rows("_pushed timestamp, payload string", view="all")
    assert {payload.strip('"'): pushed for pushed, payload in read} == {
        "new": came, "delayed": store.now + HOUR, "given back": later, "had": None, "had after a stream": came,
        "held": None, "held by a stream": came, "done": None, "done by a stream": came,
    }  # fmt: skip


def test_the_sequence_of_an_item_is_a_column_of_a_schema_that_names_it(store: Any, rows: Any) -> None:
    with mongoq.connect(store.uri, database=store.collection.database.name, collection=store.collection.name) as broker:
        queue = broker.queue("orders", history=3600)
        queue.configure(history=3600)
        queue.push_many(["processed", "ready", "blocked", "alone"], sequences=["a", "a", "a", None])
        queue.commit(queue.reserve())
    schema = "_state string, _sequence string, payload string"
    assert sorted(rows(schema, view="all"), key=str) == [
        ("processed", "a", '"processed"'), ("ready", "a", '"ready"'), ("ready", None, '"alone"'),
    ]  # fmt: skip
    assert len(rows("_sequence string")) == 2


def test_ids_of_other_types_are_read_as_text(store: Any, rows: Any) -> None:
    ids = [1, 2.5, {"k": 1}, "text", ObjectId()]
    for each in ids:
        store.add("x", _id=each)
    store.add_many(30)
    texts = {id for (id,) in rows("_id string", partitions=4)}
    assert len(texts) == 35
    assert {"1", "2.5", '{"k":1}', "text", str(ids[-1])} <= texts


def test_a_queue_that_does_not_exist_is_an_error_that_names_what_there_is(store: Any, names: Any) -> None:
    for queue in ("orders.eu", "orders.dead", "refunds"):
        store.add("x", queue=queue)
    full = store.collection.full_name
    with pytest.raises(ArgumentInvalid) as caught:
        names(queue="ordres")
    assert str(caught.value) == (
        f"queue: there is no queue 'ordres' in {full}, which has 'orders.eu', 'orders.dead', 'refunds'; correct it, or "
        f"say missing=empty if it may be missing"
    )
    with pytest.raises(ArgumentInvalid, match="queues: there is no queue 'invoices' in"):
        names(queue=None, queues='["refunds", "invoices"]')
    with pytest.raises(ArgumentInvalid, match="prefix: there is no queue whose name begins with 'invoices.' in"):
        names(queue=None, prefix="invoices.")
    with pytest.raises(ArgumentInvalid, match="no queue 'orders' in .*nothing, which holds no items at all"):
        names(collection="nothing")
    for place in ({"queue": "ordres"}, {"collection": "nothing"}, {"database": "nowhere"}):
        assert names(missing="EMPTY", **place) == []


def test_a_queue_is_known_by_its_items_its_dead_queue_and_what_was_said_of_it(store: Any, names: Any) -> None:
    store.add("x", queue="processed", when=None, processed=store.now)
    store.add("x", queue="died.dead")
    store.collection.insert_one({"_id": ObjectId(), "q": "remembered", "processed": store.now, "once": store.now})
    with mongoq.Broker(store.collection) as broker:
        broker.queue("configured").configure(lease=5)
        broker.queue("paused").pause()
        broker.queue("mortal").configure(max_retries=3, dead="graveyard")
        broker.bind("topic", "bound")
    for queue in ("processed", "processed.dead", "died", "remembered", "configured", "paused", "graveyard", "bound"):
        assert names(queue=queue) == []
    for queue in ("configure", "topic", "queue:configured"):
        with pytest.raises(ArgumentInvalid, match="there is no queue"):
            names(queue=queue)


def test_a_queue_of_which_only_counters_are_left_is_known(store: Any, names: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        queue = broker.queue("counted", history=None)
        queue.push("x")
        queue.commit(queue.reserve())
    store.collection.delete_one({"_id": "queue:counted"})
    assert {each["_id"] for each in store.collection.find()} == {"schema:mongoq", "stats:counted"}
    assert names(queue="counted") == []
