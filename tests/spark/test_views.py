from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

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


def test_views_work_without_the_indexes(mixed: Any, names: Any) -> None:
    mixed.collection.drop_indexes()
    assert names(view="live", partitions=2) == ["ready", "reserved"]
    assert names(view="history", partitions=2) == ["done"]
    assert names(view="all", partitions=2) == ["done", "ready", "reserved"]


@pytest.mark.parametrize("other", [{"database": "nowhere"}, {"collection": "nothing"}, {"queue": "nobody"}])
@pytest.mark.parametrize("view", ["live", "history", "all"])
def test_what_does_not_exist_is_an_empty_table(mixed: Any, load: Any, other: Any, view: str) -> None:
    frame = load(view=view, partitions=2, **other)
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
        "_id", "_q", "_state", "_when", "_priority", "_attempts", "_reserved", "_token", "_by", "_key",
        "_headers", "_error", "_origin", "_once", "_settled", "_processed", "_expires", "payload",
    ]  # fmt: skip
    row = frame.collect()[0].asDict(recursive=True)
    now = store.now.replace(tzinfo=None)
    assert json.loads(row.pop("_headers")) == {"trace": "t", "at": now.isoformat() + ".000Z"}
    assert json.loads(row.pop("payload")) == {"a": 1}
    assert {name: value for name, value in row.items() if name not in ("_when", "_once", "_error", "_origin")} == {
        "_id": str(item), "_q": "orders", "_state": "reserved", "_priority": -5, "_attempts": 2,
        "_reserved": True, "_token": str(token), "_by": "host:1:ab", "_key": "k",
        "_settled": None, "_processed": None, "_expires": None,
    }  # fmt: skip
    shown = load().selectExpr(
        "_when = timestamp_seconds({0} + 3600) AND _once = timestamp_seconds({0} + 7200)".format(
            int(store.now.timestamp())
        ),
        f"_error.at = timestamp_seconds({int(store.now.timestamp())})",
        "_error.type", "_error.message", "_origin.queue", "_origin.id", "_origin.reason", "_origin.attempts",
        "_origin.key",
    )  # fmt: skip
    assert tuple(shown.collect()[0]) == (
        True, True, "ValueError", "bad", "raw", str(origin_id), "no plane", 3, None,
    )  # fmt: skip


def test_states_are_told_at_the_moment_of_planning(store: Any, load: Any) -> None:
    store.add("ready")
    store.add("scheduled", when=store.now + HOUR)
    store.add("reserved", when=store.now + HOUR, reserved=True)
    store.add("expired", when=store.now - HOUR, reserved=True)
    store.add("processed", when=None, processed=store.now)
    rows = load("_state string, payload string", view="all").collect()
    assert {row.payload.strip('"') for row in rows} == {row._state for row in rows}
    assert len(rows) == 5


def test_ids_of_other_types_are_read_as_text(store: Any, load: Any) -> None:
    ids = [1, 2.5, {"k": 1}, "text", ObjectId()]
    for each in ids:
        store.add("x", _id=each)
    store.add_many(30)
    shown = {row._id for row in load("_id string", partitions=4).collect()}
    assert len(shown) == 35
    assert {"1", "2.5", '{"k":1}', "text", str(ids[-1])} <= shown
