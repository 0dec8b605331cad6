"""Items by HTTP: lists, one item, push and deletion."""

from __future__ import annotations

import base64
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId

import mongoq
from tests.web.conftest import Api

HOSTILE = [
    "<script>alert(1)</script>",
    "javascript:alert(1)",
    "a\u202eb",
    {"__proto__": {"x": 1}},
    {"$set": 1},
    "\x1b[2J",
]


def list_all(api: Api, path: str, **parameters: Any) -> list[Any]:
    """Return all items of a list, answer by answer."""
    items: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = api.get(path, **parameters, **cursor).json()
        items += answer["items"]
        if answer["next"] is None:
            return items
        cursor = {"cursor": answer["next"]}


def test_a_list_goes_on_at_its_cursor(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(7), priority=3)
    queue.push_many(range(7, 10))
    listed = list_all(each_api, "/api/items", queue="orders", limit=3)
    assert [item["payload"] for item in listed] == [7, 8, 9, *range(7)]
    assert all(item["state"] == "ready" for item in listed)


@pytest.mark.parametrize("state", ["ready", "scheduled", "reserved", "processed"])
def test_items_are_listed_by_state(api: Api, queue: mongoq.Queue[Any], state: str) -> None:
    queue.push("reserved")
    queue.reserve()
    queue.push("processed")
    queue.pop()
    queue.push("ready")
    queue.push("scheduled", delay=3600)
    [item] = list_all(api, "/api/items", queue="orders", state=state)
    assert (item["payload"], item["state"]) == (state, state)


def test_a_filter_selects_items(api: Api, queue: mongoq.Queue[Any]) -> None:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    queue.push_many([{"city": "Paris", "at": at}, {"city": "Rome", "at": at}])
    by_name = list_all(api, "/api/items", queue="orders", where='{"city": "Paris"}')
    by_date = list_all(api, "/api/items", queue="orders", where='{"at": {"$date": "2026-11-26T00:00:00Z"}}')
    assert ([each["payload"]["city"] for each in by_name], len(by_date)) == (["Paris"], 2)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"state": "gone"}, "state"),
        ({"limit": 0}, "limit"),
        ({"limit": 100_000}, "limit"),
        ({"where": "{"}, "where"),
        ({"where": "[]"}, "where"),
        ({"where": '{"$where": "1"}'}, "where"),
        ({"where": '{"a": 1, "a": 2}'}, "where"),
        ({"cursor": "x"}, "cursor"),
        ({"queue": "$orders"}, "queue"),
        ({"queue": "x" * 200}, "queue"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(
    api: Api, queue: mongoq.Queue[Any], parameters: dict[str, Any], field: str
) -> None:
    queue.push(1)
    answer = api.get("/api/items", **{"queue": "orders", **parameters})
    assert (answer.status_code, [each["field"] for each in answer.json()["fields"]]) == (422, [field])


@pytest.mark.parametrize(
    "change",
    [
        {"state": "processed"},
        {"since": None},
        {"since": {"$gt": 1}},
        {"at": "now"},
        {"after": {"when": {"$gt": 1}, "priority": 0, "_id": 1}},
        {"after": {"when": datetime.now(UTC), "priority": {"$gt": 1}, "_id": 1}},
        {"after": {"when": datetime.now(UTC), "priority": 0, "_id": bson.Regex("x")}},
        {"after": {"q": "mails"}},
        {"after": 1},
    ],
)
def test_a_cursor_that_was_changed_is_refused(api: Api, queue: mongoq.Queue[Any], change: dict[str, Any]) -> None:
    queue.push_many(range(3))
    text = api.get("/api/items", queue="orders", limit=1).json()["next"]
    document = {**bson.decode(base64.urlsafe_b64decode(text + "==")), **change}
    changed = base64.urlsafe_b64encode(bson.encode(document)).decode()
    answer = api.get("/api/items", queue="orders", limit=1, cursor=changed)
    assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "cursor")


def test_one_item_is_shown_in_any_state(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push({"city": "Paris"}, headers={"tenant": "acme"})
    shown = each_api.get(f"/api/items/{id}").json()
    assert (shown["payload"], shown["headers"], shown["state"]) == ({"city": "Paris"}, {"tenant": "acme"}, "ready")
    queue.pop()
    assert each_api.get(f"/api/items/{id}").json()["state"] == "processed"
    gone = each_api.get(f"/api/items/{ObjectId()}")
    assert (gone.status_code, "without history" in gone.json()["detail"]) == (404, True)
    assert each_api.get("/api/items/x").status_code == 422


def test_an_item_that_was_settled_without_history_is_remembered(api: Api, broker: mongoq.Broker) -> None:
    id = ObjectId()
    broker.queue("mails").push(1, id=id)
    broker.queue("mails").pop()
    shown = api.get(f"/api/items/{id}").json()
    assert (shown["state"], "processed" in shown, "payload" in shown) == ("remembered", True, False)


def test_a_payload_of_extended_json_is_pushed(each_api: Api, broker: mongoq.Broker) -> None:
    payload = {"id": {"$oid": "65f0c0ffee65f0c0ffee0001"}, "at": {"$date": "2026-11-26T00:00:00Z"}}
    answer = each_api.post("/api/items/push", queue="mails", payload=payload, priority=-5, headers={"a": "b"})
    assert (answer.status_code, answer.json()["new_queue"]) == (201, True)
    item = broker.queue("mails").reserve()
    assert item is not None
    assert item.payload == {
        "id": ObjectId("65f0c0ffee65f0c0ffee0001"),
        "at": datetime(2026, 11, 26, tzinfo=UTC),
    }
    assert (str(item.id), item.priority, item.headers) == (answer.json()["id"], -5, {"a": "b"})


def test_a_push_is_sent_again_without_a_second_item(each_api: Api, broker: mongoq.Broker) -> None:
    id = str(ObjectId())
    body = {"queue": "mails", "payload": 1, "id": id, "once": 60}
    first, again = each_api.post("/api/items/push", **body), each_api.post("/api/items/push", **body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["id"], first.json()["new_item"]) == (id, True)
    assert (again.json()["id"], again.json()["new_item"]) == (id, False)
    broker.queue("mails").pop()  # of an item that was settled, the id is remembered
    assert each_api.post("/api/items/push", **body).status_code == 200
    assert (broker.queue("mails").size(), broker.queue("mails").settings.history) == (0, None)


def test_an_id_of_another_queue_is_a_conflict(api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    id = str(queue.push(1))
    answer = api.post("/api/items/push", queue="mails", payload=1, id=id)
    assert (answer.status_code, "'orders'" in answer.json()["detail"]) == (409, True)
    assert (queue.size(), broker.queue("mails").size()) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": "x"}, "id"),
        ({"id": {"$gt": 1}}, "id"),
        ({"once": 60}, "once"),
        ({"id": str(ObjectId()), "once": 0}, "once"),
        ({"id": str(ObjectId()), "once": "soon"}, "once"),
        ({"key": ""}, "key"),
        ({"key": "\ud800"}, "key"),
    ],
)
def test_an_id_or_a_key_that_cannot_be_used_is_named(
    api: Api, queue: mongoq.Queue[Any], fields: dict[str, Any], field: str
) -> None:
    body = json.dumps({"queue": "orders", "payload": 1, **fields}).encode()
    answer = api.request("POST", "/api/items/push", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, [each["field"] for each in answer.json()["fields"]]) == (422, [field])
    assert queue.size() == 0


@pytest.mark.parametrize(("action", "payload"), [("keep", 1), ("replace", 2)])
def test_a_push_under_a_taken_key_says_so(
    each_api: Api, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture, action: str, payload: int
) -> None:
    done = queue.push(0, key="a")
    queue.pop()  # in the history, it has the key no longer
    first = each_api.post("/api/items/push", queue="orders", payload=1, key="a")
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        second = each_api.post("/api/items/push", queue="orders", payload=2, key="a", on_duplicate=action)
    assert (first.status_code, second.status_code, first.json()["id"] != str(done)) == (201, 200, True)
    assert (second.json()["id"], second.json()["new_item"]) == (first.json()["id"], False)
    assert [item.payload for item in queue.peek(5)] == [payload]
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert record.mongoq_number == payload - 1  # type: ignore[attr-defined]


def test_a_push_may_be_due_later(api: Api, queue: mongoq.Queue[Any]) -> None:
    api.post("/api/items/push", queue="orders", payload=1, delay=60)
    api.post("/api/items/push", queue="orders", payload=2, when="2126-01-01T00:00:00Z")
    assert queue.counts() == mongoq.Counts(scheduled=2)
    both = api.post("/api/items/push", queue="orders", payload=3, delay=60, when="2126-01-01T00:00:00Z")
    assert both.status_code == 422


def test_a_key_that_is_taken_is_a_conflict_unless_the_caller_says_otherwise(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = api.post("/api/items/push", queue="orders", payload=1, key="a").json()["id"]
    conflict = api.post("/api/items/push", queue="orders", payload=2, key="a")
    assert (conflict.status_code, id in conflict.json()["detail"]) == (409, True)
    assert api.post("/api/items/push", queue="orders", payload=2, key="a", on_duplicate="keep").json()["id"] == id
    assert [item.payload for item in queue.peek(9)] == [1]


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_payloads_come_back_as_they_are(api: Api, queue: mongoq.Queue[Any], payload: Any) -> None:
    id = queue.push(payload)
    answer = api.get(f"/api/items/{id}")
    assert answer.json()["payload"] == payload
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b'{"queue": "orders", "payload": 1, "payload": 2}', 422),
        (b'{"queue": "orders", "payload": NaN}', 422),
        (b'{"queue": "orders", "payload": "\\ud800"}', 422),
        (b'{"queue": "\\ud800", "payload": 1}', 422),
        (b'{"queue": "orders", "payload": {"$oid": "x"}}', 422),
        (b'{"queue": "orders", "payload": 1, "priority": 101}', 422),
        (b'{"queue": "orders", "payload": 1, "colour": 1}', 422),
        (b'{"queue": "orders", "payload": 1, "headers": 1}', 422),
        (b'{"queue": "orders", "payload": 1, "delay": -1}', 422),
        (b'{"queue": "orders", "payload": 1, "delay": 1e300}', 422),
        (b'{"queue": "orders", "payload": 1, "when": "soon"}', 422),
        (b'{"queue": "orders", "payload": 1, "key": ""}', 422),
        (b'{"queue": "orders"}', 422),
        (b"[]", 422),
        (b"\xff", 422),
        (b"[" * 100_000, 422),
        (b"", 422),
    ],
    ids=range(18),
)
def test_a_bad_body_pushes_nothing(api: Api, queue: mongoq.Queue[Any], body: bytes, status: int) -> None:
    answer = api.request("POST", "/api/items/push", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["detail"]
    assert queue.size() == 0


def test_a_body_of_another_type_is_refused(api: Api, queue: mongoq.Queue[Any]) -> None:
    answer = api.request("POST", "/api/items/push", content=b'{"queue": "orders", "payload": 1}')
    assert (answer.status_code, queue.size()) == (415, 0)


def test_a_payload_that_is_too_large_is_refused(api: Api, queue: mongoq.Queue[Any]) -> None:
    assert api.post("/api/items/push", queue="orders", payload="x" * (16 << 20)).status_code == 413
    assert api.post("/api/items/push", queue="orders", payload="x" * (18 << 20)).status_code == 413
    assert queue.size() == 0


def test_an_item_is_removed_unless_a_worker_holds_it(api: Api, queue: mongoq.Queue[Any]) -> None:
    first, second = queue.push(1), queue.push(2)
    queue.reserve()
    assert api.post("/api/items/remove", queue="orders", id=str(first)).status_code == 409
    assert api.post("/api/items/remove", queue="orders", id=str(second)).json()["number"] == 1
    assert api.post("/api/items/remove", queue="orders", id=str(second)).status_code == 404
    assert queue.counts() == mongoq.Counts(reserved=1)


def test_a_purge_has_a_dry_run_and_a_limit(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([{"n": n} for n in range(10)])
    dry = api.post("/api/items/purge", queue="orders", where={"n": {"$gte": 4}}, dry_run=True).json()
    assert (dry["number"], dry["dry_run"], queue.size()) == (6, True, 10)
    assert api.post("/api/items/purge", queue="orders", where={"n": {"$gte": 4}}, limit=2).json()["number"] == 2
    assert queue.size() == 8
    assert api.post("/api/items/purge", queue="orders", limit=10**6).status_code == 422


def test_a_pushed_item_may_expire(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = api.post("/api/items/push", queue="orders", payload=1, expires=600).json()["id"]
    item = queue.get(ObjectId(id))
    assert item is not None
    assert item.start_by is not None
    assert api.get(f"/api/items/{id}").json()["start_by"]
    for body in ({"expires": -1}, {"expires": 0}, {"expires": "0s"}, {"expires": "1m", "delay": 60}):
        assert api.post("/api/items/push", queue="orders", payload=2, **body).status_code == 422
    assert queue.size() == 1


def test_the_durations_of_a_push_are_texts_or_seconds(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = str(ObjectId())
    body = {"queue": "orders", "payload": 1, "id": id, "once": "2d"}
    api.post("/api/items/push", **body, delay="90s", expires="1.5h")
    item = queue.get(ObjectId(id))
    assert item is not None
    assert item.start_by is not None
    assert item.due is not None
    assert item.start_by - item.due == timedelta(minutes=90, seconds=-90)
    assert api.post("/api/items/push", **body).status_code == 200


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("soon", "'soon' is no duration; write it as 90s, 5m, 2h or 7d"),
        ("", "'' is no duration"),
        ("-5m", "'-5m' is no duration"),
        ("5 weeks", "'5 weeks' is no duration"),
        ("999999999999d", "'999999999999d' is too long"),
        (True, "a duration is a number of seconds, or a text such as 90s"),
        ([5], "a duration is a number of seconds, or a text such as 90s"),
        ({"$gt": 5}, "a duration is a number of seconds, or a text such as 90s"),
        (-1, "greater than or equal to 0"),
    ],
)
def test_a_duration_that_cannot_be_read_is_explained(
    api: Api, queue: mongoq.Queue[Any], value: Any, problem: str
) -> None:
    for field in ("delay", "expires", "once"):
        answer = api.post("/api/items/push", queue="orders", payload=1, **{field: value})
        [found] = answer.json()["fields"]
        assert (answer.status_code, found["field"], problem in found["problem"]) == (422, field, True), found
    assert queue.size() == 0


def test_where_expired_items_go_is_a_setting(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    assert api.get("/api/settings", queue="orders").json()["on_expired"] == "history"
    assert api.post("/api/settings", queue="orders", on_expired="dead").json()["on_expired"] == "dead"
    assert api.post("/api/settings", queue="orders", on_expired="nowhere").status_code == 422


# --- sequences -----------------------------------------------------------------------------------


def test_blocked_items_are_listed_with_what_blocks_them(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    for name in ("b", "a"):
        answers = [each_api.post("/api/items/push", queue="orders", payload={"n": n}, sequence=name) for n in range(4)]
        assert [answer.status_code for answer in answers] == [201] * 4
    heads = {item.sequence: str(item.id) for item in queue.peek(9)}
    listed = list_all(each_api, "/api/items", queue="orders", state="blocked", limit=2)
    assert [(item["sequence"], item["payload"]["n"]) for item in listed] == [
        (name, n) for name in "ab" for n in (1, 2, 3)
    ]
    for item in listed:
        assert (item["state"], item["blocked_by"]) == ("blocked", [{"id": heads[item["sequence"]], "state": "ready"}])
    filtered = list_all(each_api, "/api/items", queue="orders", state="blocked", where='{"n": {"$gt": 2}}', limit=1)
    assert [item["sequence"] for item in filtered] == ["a", "b"]
    taken = queue.reserve()
    assert taken is not None
    shown = each_api.get(f"/api/items/{listed[-1]['id']}").json()
    assert (taken.sequence, shown["blocked_by"]) == ("b", [{"id": heads["b"], "state": "reserved"}])
    assert "blocked_by" not in each_api.get(f"/api/items/{taken.id}").json()
    [state] = each_api.get("/api/queues", queue="orders").json()["queues"]
    assert (state["ready"], state["reserved"], state["blocked"]) == (1, 1, 6)
    assert each_api.post("/api/queues/drop", queue="orders", force=True, dry_run=True).json()["number"] == 8
    assert each_api.post("/api/items/purge", queue="orders", dry_run=True).json()["number"] == 7


@pytest.mark.parametrize(
    "change",
    [
        {"after": {"sequence": {"$gt": ""}, "place": 1}},
        {"after": {"sequence": "a", "place": "1"}},
        {"after": {"sequence": "a", "place": {"$gt": 0}}},
        {"after": {"when": datetime.now(UTC), "priority": 0, "_id": 1}},
        {"state": None},
    ],
)
def test_a_cursor_of_blocked_items_that_was_changed_is_refused(
    api: Api, queue: mongoq.Queue[Any], change: dict[str, Any]
) -> None:
    queue.push_many(range(4), sequence="a")
    text = api.get("/api/items", queue="orders", state="blocked", limit=1).json()["next"]
    document = {**bson.decode(base64.urlsafe_b64decode(text + "==")), **change}
    changed = base64.urlsafe_b64encode(bson.encode(document)).decode()
    answer = api.get("/api/items", queue="orders", state="blocked", limit=1, cursor=changed)
    assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "cursor")


@pytest.mark.parametrize("sequence", ["", "x" * 1025, 5])
def test_a_sequence_that_cannot_be_used_is_named(api: Api, queue: mongoq.Queue[Any], sequence: Any) -> None:
    queue.push("there")
    answer = api.post("/api/items/push", queue="orders", payload=1, sequence=sequence)
    assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "sequence")
    assert queue.size() == 1


def test_how_many_items_of_a_sequence_go_at_a_time_is_a_setting(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    assert api.get("/api/settings", queue="orders").json()["max_in_sequence"] == 1
    assert api.post("/api/settings", queue="orders", max_in_sequence=3).json()["max_in_sequence"] == 3
    assert api.post("/api/settings", queue="orders", max_in_sequence=0).status_code == 422
