"""Items by HTTP: lists, one item, push and deletion."""

from __future__ import annotations

import base64
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, ObjectId

import mongoq
from tests.web.conftest import Api, list_all, open_page, send_form


def test_a_list_goes_on_at_its_cursor(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(7), priority=3)
    queue.push_many(range(7, 10))
    listed = list_all(each_api, "/api/items", queue="orders", limit=3)
    assert [item["payload"] for item in listed] == [7, 8, 9, *range(7)]
    assert all(item["state"] == "ready" for item in listed)


@pytest.mark.parametrize("state", ["ready", "processed"])
def test_a_list_goes_on_after_an_id_of_another_program(
    api: Api, queue: mongoq.Queue[Any], raw: Any, state: str
) -> None:
    ids = [Binary.from_uuid(UUID(int=1)), "text", 7, {"a": Binary.from_uuid(UUID(int=2))}]
    queue.push(1)
    if state == "processed":
        queue.pop()
    [document] = raw.find({"q": "orders"})
    raw.insert_many([{**document, "_id": id} for id in ids])
    assert len(list_all(api, "/api/items", queue="orders", state=state, limit=1)) == 1 + len(ids)


def test_items_are_listed_by_state_and_filter(api: Api, queue: mongoq.Queue[Any]) -> None:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    queue.push({"is": "reserved"})
    queue.reserve()
    queue.push({"is": "processed"})
    queue.pop()
    queue.push({"is": "ready", "at": at})
    queue.push({"is": "scheduled", "at": at}, delay=3600)
    for state in ("ready", "scheduled", "reserved", "processed"):
        [item] = list_all(api, "/api/items", queue="orders", state=state)
        assert (item["payload"]["is"], item["state"]) == (state, state)
    for where in ('{"is": "ready"}', '{"at": {"$date": "2026-11-26T00:00:00Z"}, "is": {"$ne": "scheduled"}}'):
        assert [each["payload"]["is"] for each in list_all(api, "/api/items", queue="orders", where=where)] == ["ready"]


def test_a_parameter_that_cannot_be_used_is_named(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    for path, parameters in (
        ("items", {"state": "gone"}),
        ("items", {"limit": 0}),
        ("items", {"limit": 100000}),
        ("items", {"where": "{"}),
        ("items", {"where": "[]"}),
        ("history", {"where": "null"}),  # it would stand for all items
        ("history", {"since": "soon"}),
        ("history", {"until": "2h", "since": "1h"}),
    ):
        answer = api.get(f"/api/{path}", queue="orders", **parameters)
        found = (answer.status_code, [each["field"] for each in answer.json()["fields"]])
        assert found == (422, [next(iter(parameters))]), parameters


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        (None, [{"state": "processed"}, {"since": None}, {"since": {"$gt": 1}}]),
        (
            "blocked",
            [
                {"after": {"sequence": {"$gt": ""}, "place": 1}},
                {"after": {"sequence": "a", "place": {"$gt": 0}}},
                {"after": {"when": datetime(2026, 11, 26, tzinfo=UTC), "priority": 0, "_id": 1}},
                {"state": None},
            ],
        ),
    ],
    ids=["cursor_of_items", "cursor_of_blocked"],
)
def test_a_cursor_that_was_changed_is_refused(
    api: Api, queue: mongoq.Queue[Any], state: str | None, changes: list[dict[str, Any]]
) -> None:
    queue.push_many(range(4), sequence="a" if state else None)
    parameters = {"queue": "orders", "limit": 1, **({"state": state} if state else {})}
    text = api.get("/api/items", **parameters).json()["next"]
    for change in changes:
        document = {**bson.decode(base64.urlsafe_b64decode(text + "==")), **change}
        changed = base64.urlsafe_b64encode(bson.encode(document)).decode()
        answer = api.get("/api/items", **parameters, cursor=changed)
        assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "cursor"), change


def test_one_item_is_shown_in_any_state(api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    id = queue.push({"city": "Paris"}, headers={"tenant": "acme"})
    shown = api.get(f"/api/items/{id}").json()
    assert (shown["payload"], shown["headers"], shown["state"]) == ({"city": "Paris"}, {"tenant": "acme"}, "ready")
    queue.pop()
    assert api.get(f"/api/items/{id}").json()["state"] == "processed"
    gone = api.get(f"/api/items/{ObjectId()}")
    assert (gone.status_code, "without history" in gone.json()["detail"]) == (404, True)
    assert api.get("/api/items/x").status_code == 422
    broker.queue("mails").push(1, id=(remembered := ObjectId()))
    broker.queue("mails").pop()
    shown = api.get(f"/api/items/{remembered}").json()
    assert (shown["state"], "processed" in shown, "payload" in shown) == ("remembered", True, False)


def test_a_payload_of_extended_json_is_pushed(api: Api, broker: mongoq.Broker) -> None:
    payload = {"id": {"$oid": "65f0c0ffee65f0c0ffee0001"}, "at": {"$date": "2026-11-26T00:00:00Z"}}
    answer = api.post("/api/items/push", queue="mails", payload=payload, priority=-5, headers={"a": "b"})
    assert (answer.status_code, answer.json()["new_queue"]) == (201, True)
    item = broker.queue("mails").reserve()
    assert item is not None
    assert item.payload == {
        "id": ObjectId("65f0c0ffee65f0c0ffee0001"),
        "at": datetime(2026, 11, 26, tzinfo=UTC),
    }
    assert (str(item.id), item.priority, item.headers) == (answer.json()["id"], -5, {"a": "b"})


def test_a_push_is_sent_again_without_a_second_item(
    each_api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    id = str(ObjectId())
    body = {"queue": "mails", "payload": 1, "id": id, "once": 60}
    first, again = each_api.post("/api/items/push", **body), each_api.post("/api/items/push", **body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["id"], first.json()["new_item"]) == (id, True)
    assert (again.json()["id"], again.json()["new_item"]) == (id, False)
    broker.queue("mails").pop()  # of an item that was settled, the id is remembered
    assert each_api.post("/api/items/push", **body).status_code == 200
    assert (broker.queue("mails").size(), broker.queue("mails").settings.history) == (0, None)
    other = each_api.post("/api/items/push", queue="mails", payload=1, id=str(queue.push(1)))
    assert (other.status_code, "'orders'" in other.json()["detail"], broker.queue("mails").size()) == (409, True, 0)


@pytest.mark.parametrize(("action", "payload"), [("keep", 1), ("replace", 2)])
def test_a_push_under_a_taken_key_says_so(
    api: Api, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture, action: str, payload: int
) -> None:
    done = queue.push(0, key="a")
    queue.pop()  # in the history, it has the key no longer
    first = api.post("/api/items/push", queue="orders", payload=1, key="a")
    id = first.json()["id"]
    conflict = api.post("/api/items/push", queue="orders", payload=2, key="a")
    assert (conflict.status_code, id in conflict.json()["detail"]) == (409, True)
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        second = api.post("/api/items/push", queue="orders", payload=2, key="a", on_duplicate=action)
    assert (first.status_code, second.status_code, id != str(done)) == (201, 200, True)
    assert (second.json()["id"], second.json()["new_item"]) == (id, False)
    assert [item.payload for item in queue.peek(5)] == [payload]
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert record.mongoq_number == payload - 1  # type: ignore[attr-defined]


def test_a_push_may_be_due_later_and_expire(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = str(ObjectId())
    body = {"queue": "orders", "payload": 1, "id": id, "once": "2d"}
    api.post("/api/items/push", **body, delay="90s", expires="1.5h")
    item = queue.get(ObjectId(id))
    assert item is not None
    assert item.start_by is not None
    assert item.due is not None
    # Both count from the push, but each from its own look at the clock.
    assert abs(item.start_by - item.due - timedelta(minutes=90, seconds=-90)) < timedelta(minutes=1)
    assert api.get(f"/api/items/{id}").json()["start_by"]
    assert api.post("/api/items/push", **body).status_code == 200
    api.post("/api/items/push", queue="orders", payload=1, delay=60)
    api.post("/api/items/push", queue="orders", payload=2, when="2126-01-01T00:00:00Z")
    assert queue.counts() == mongoq.Counts(scheduled=3)


def test_a_bad_body_pushes_nothing(api: Api, queue: mongoq.Queue[Any]) -> None:
    """And a duration that cannot be read is explained."""
    for fields, field, problem in (
        ('"id": "x"', "id", ""),
        ('"id": {"$gt": 1}', "id", ""),
        ('"once": 60', "once", ""),
        ('"sequence": ""', "sequence", ""),
        ('"delay": 60, "when": "2126-01-01T00:00:00Z"', None, ""),
        ('"expires": -1', None, ""),
        ('"expires": "1m", "delay": 60', None, ""),
        ('"delay": "soon"', "delay", "'soon' is no duration; write it as 90s, 5m, 2h or 7d"),
        ('"expires": "-5m"', "expires", "'-5m' is no duration"),
        ('"once": true', "once", ""),
        ('"payload": 2', None, ""),
        ('"priority": NaN', None, ""),
        ('"headers": {"x": "\\ud800"}', None, ""),
        ('"headers": {"$oid": "x"}', None, ""),
        ('"nonsense": 1', "nonsense", ""),
        ("", None, ""),
    ):
        body = f'{{"queue": "orders", "payload": 1, {fields}}}'.encode()
        answer = api.request("POST", "/api/items/push", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), fields
        assert answer.json()["detail"]
        if field is not None:
            [found] = answer.json()["fields"]
            assert (found["field"], problem in found["problem"]) == (field, True), fields
    assert queue.size() == 0


def test_a_body_of_another_type_or_size_is_refused(api: Api, queue: mongoq.Queue[Any]) -> None:
    assert api.request("POST", "/api/items/push", content=b'{"queue": "orders", "payload": 1}').status_code == 415
    for megabytes in (16, 18):
        assert api.post("/api/items/push", queue="orders", payload="x" * (megabytes << 20)).status_code == 413
    wrong = api.post("/api/items/push", queue="orders", payload=1, **{f"{'x' * 300}{n}": 1 for n in range(2_000)})
    assert (wrong.status_code, len(wrong.json()["fields"]), len(wrong.content) < 100_000) == (422, 100, True)
    assert queue.size() == 0


def test_hostile_payloads_come_back_as_they_are(api: Api, queue: mongoq.Queue[Any]) -> None:
    payloads = ["<script>alert(1)</script>", "a\u202eb", {"__proto__": {"x": 1}}, {"$set": 1}, "\x1b[2J"]
    for id, payload in zip(queue.push_many(payloads), payloads, strict=True):
        answer = api.get(f"/api/items/{id}")
        assert json.loads(answer.text)["payload"] == payload
        assert answer.headers["content-type"] == "application/json"


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


def test_a_queue_without_history_says_how_to_keep_one(
    api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    raw = broker.queue("raw", lease=7)
    raw.push(1)
    raw.pop()
    line = "mongoq configure raw --history 7d"
    for answer in (
        api.get("/api/history", queue="raw"),
        api.get("/api/history", queue="raw", where='{"a": 1}', since="1h"),
        api.get("/api/items", queue="raw", state="processed"),
        api.post("/api/history/replay", queue="raw"),
        api.post("/api/history/replay", queue="raw", dry_run=True),
    ):
        assert (answer.status_code, line in answer.json()["note"]) == (200, True)
    queue.push(1)
    assert "note" not in api.get("/api/history", queue="orders").json()
    for path, parameters in (
        ("/queue", {"name": "raw", "state": "processed"}),
        ("/queue", {"name": "raw", "state": "processed", "where": '{"a": 1}'}),
        ("/", {}),
    ):
        assert line in open_page(api, path, **parameters)
    asked = send_form(api, {"action": "replay_history", "queue": "raw"})
    assert (asked.status_code, line in asked.text) == (200, True)
