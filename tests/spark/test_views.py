from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq

HOUR = timedelta(hours=1)


@pytest.fixture
def names(load: Any) -> Any:
    """Return the payloads of a view, sorted."""

    def names(**options: Any) -> list[str]:
        return sorted(row.payload.strip('"') for row in load(**options).select("payload").collect())

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


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (None, ["ready", "reserved"]),
        ("live", ["ready", "reserved"]),
        ("LIVE", ["ready", "reserved"]),
        ("history", ["done"]),
        ("dead", ["dead"]),
        ("all", ["done", "ready", "reserved"]),
    ],
)
def test_a_view_shows_its_items_and_neither_stubs_nor_control_documents(
    mixed: Any, names: Any, view: str | None, expected: list[str]
) -> None:
    assert names(view=view) == expected
    assert names(view=view, partitions=3) == expected


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


@pytest.mark.parametrize("state", ["ready", "scheduled", "reserved", "expired"])
def test_each_live_state_is_a_view(states: Any, load: Any, state: str) -> None:
    for partitions in (1, 3):
        rows = load("_state string, payload string", view=state, partitions=partitions).collect()
        assert [(row._state, row.payload) for row in rows] == [(state, f'"{state}"')]


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


@pytest.mark.parametrize("suffix", ["\ud7ff", "\U0010ffff", "\U0010ffff\U0010ffff", ".*$"])
def test_any_text_may_be_a_prefix(store: Any, names: Any, suffix: str) -> None:
    for queue in (f"a{suffix}", f"a{suffix}\U0010ffff", f"a{suffix}x"):
        store.add(queue, queue=queue)
    store.add("before", queue="a")
    store.add("behind", queue="b")
    assert names(queue=None, prefix=f"a{suffix}") == sorted([f"a{suffix}", f"a{suffix}\U0010ffff", f"a{suffix}x"])


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


def test_views_work_without_the_indexes(mixed: Any, names: Any) -> None:
    mixed.collection.drop_indexes()
    assert names(view="live", partitions=2) == ["ready", "reserved"]
    assert names(view="history", partitions=2) == ["done"]
    assert names(view="all", partitions=2) == ["done", "ready", "reserved"]


@pytest.mark.parametrize("place", [{"database": "nowhere"}, {"collection": "nothing"}, {"queue": "nobody"}])
@pytest.mark.parametrize("view", ["live", "history", "all"])
def test_what_does_not_exist_is_an_empty_table_if_that_is_asked_for(
    mixed: Any, load: Any, place: Any, view: str
) -> None:
    frame = load(view=view, partitions=2, missing="empty", **place)
    assert frame.collect() == []
    assert "_origin" in frame.columns


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
        "_origin.key",
    )  # fmt: skip
    assert tuple(columns.collect()[0]) == (
        True, True, "ValueError", "bad", "raw", str(origin_id), "no plane", 3, None,
    )  # fmt: skip


def test_when_an_item_came_is_shown_until_somebody_has_had_it_and_then_if_a_stream_noted_it(
    store: Any, load: Any
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
    rows = load("_pushed timestamp, payload string", view="all").collect()
    assert {row.payload.strip('"'): row._pushed for row in rows} == {
        name: None if at is None else at.replace(tzinfo=None)
        for name, at in {
            "new": came, "delayed": store.now + HOUR, "given back": later, "had": None, "had after a stream": came,
            "held": None, "held by a stream": came, "done": None, "done by a stream": came,
        }.items()
    }  # fmt: skip


def test_states_are_computed_at_the_moment_of_planning(store: Any, load: Any) -> None:
    store.add("ready")
    store.add("scheduled", when=store.now + HOUR)
    store.add("reserved", when=store.now + HOUR, reserved=True)
    store.add("expired", when=store.now - HOUR, reserved=True)
    store.add("processed", when=None, processed=store.now)
    rows = load("_state string, payload string", view="all").collect()
    assert {row.payload.strip('"') for row in rows} == {row._state for row in rows}
    assert len(rows) == 5


def test_the_sequence_of_an_item_is_a_column_of_a_schema_that_names_it(store: Any, load: Any) -> None:
    with mongoq.connect(store.uri, database=store.collection.database.name, collection=store.collection.name) as broker:
        queue = broker.queue("orders", history=3600)
        queue.configure(history=3600)
        queue.push_many(["processed", "ready", "blocked", "alone"], sequences=["a", "a", "a", None])
        queue.commit(queue.reserve())
    schema = "_state string, _sequence string, payload string"
    rows = load(schema, view="all").collect()
    assert sorted(map(tuple, rows), key=str) == [
        ("processed", "a", '"processed"'), ("ready", "a", '"ready"'), ("ready", None, '"alone"'),
    ]  # fmt: skip
    assert "_sequence" not in load().columns  # the writer would use it
    assert [row._sequence for row in load(schema, view="all").filter("_sequence = 'a'").collect()] == ["a", "a"]


def test_ids_of_other_types_are_read_as_text(store: Any, load: Any) -> None:
    ids = [1, 2.5, {"k": 1}, "text", ObjectId()]
    for each in ids:
        store.add("x", _id=each)
    store.add_many(30)
    texts = {row._id for row in load("_id string", partitions=4).collect()}
    assert len(texts) == 35
    assert {"1", "2.5", '{"k":1}', "text", str(ids[-1])} <= texts
