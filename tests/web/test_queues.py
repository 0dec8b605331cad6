"""Queues and their settings by HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import mongoq
from tests.web.conftest import Api


def test_the_state_of_all_queues_is_listed(api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(50))
    broker.queue("mails").push(1, delay=60)
    listed = api.get("/api/queues").json()["queues"]
    assert [(each["queue"], each["ready"], each["scheduled"]) for each in listed] == [
        ("mails", 0, 1), ("orders", 50, 0),
    ]  # fmt: skip
    assert (listed[1]["at_least"], listed[1]["dead_queue"]) == ([], "orders.dead")
    [orders] = api.get("/api/queues", queue="orders", budget=20).json()["queues"]
    assert ("ready" in orders["at_least"], orders["ready"] < 50) == (True, True)


def test_what_is_used_of_limits_is_part_of_a_queue(api: Api, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push(1)
    [orders] = api.get("/api/queues", queue="orders").json()["queues"]
    assert orders["limits"] is None
    queue.configure(max_running=2)
    now = datetime.now(UTC)
    holder = {"by": "worker", "number": 2, "wanted": 4, "since": now, "until": now + timedelta(minutes=5)}
    raw.insert_one({"_id": "limit:orders", "holders": [holder]})
    [orders] = api.get("/api/queues", queue="orders").json()["queues"]
    limits = orders["limits"]
    assert (limits["max_running"], limits["permits"], limits["rate"], limits["next_start"]) == (2, 2, None, None)
    assert limits["reason"] == "workers hold 2 of 2 permits"
    assert [(each["worker"], each["permits"], each["wanted"]) for each in limits["holders"]] == [("worker", 2, 4)]


def test_an_unknown_queue_names_the_nearest_ones(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    for path in ("/api/queues", "/api/items", "/api/letters", "/api/letters/groups", "/api/history", "/api/settings"):
        answer = api.get(path, queue="oders")
        assert (answer.status_code, answer.json()["nearest"]) == (404, ["orders"]), path
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_queue_is_paused_resumed_and_dropped(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(3))
    assert each_api.post("/api/queues/pause", queue="orders").json()["paused"] is True
    assert queue.is_paused()
    assert each_api.post("/api/queues/resume", queue="orders").json()["paused"] is False
    assert not queue.is_paused()
    assert each_api.post("/api/queues/drop", queue="orders").status_code == 409
    dry = each_api.post("/api/queues/drop", queue="orders", force=True, dry_run=True).json()
    assert (dry["number"], queue.size()) == (3, 3)
    assert each_api.post("/api/queues/drop", queue="orders", force=True).json()["number"] == 3
    assert each_api.get("/api/items", queue="orders").status_code == 404


def test_settings_are_shown_and_changed(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    before = each_api.get("/api/settings", queue="orders").json()
    assert (before["history"], before["max_retries"], before["dead"]) == (3600.0, 0, "orders.dead")
    assert (before["on_expired"], before["max_in_sequence"]) == ("history", 1)
    after = each_api.post("/api/settings", queue="orders", max_retries=None, lease="1500ms", history="7d").json()
    assert (after["history"], after["max_retries"], after["lease"]) == (604_800.0, None, 1.5)
    after = each_api.post("/api/settings", queue="orders", lease=5, on_expired="dead", max_in_sequence=3).json()
    assert (after["lease"], after["on_expired"], after["max_in_sequence"]) == (5.0, "dead", 3)


def test_settings_that_cannot_be_used_change_nothing(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    before = api.get("/api/settings", queue="orders").json()
    changes: list[dict[str, Any]] = [
        *({}, {"lease": -1}, {"lease": "0s"}, {"lease": "long"}, {"max_retries": 1.5}, {"dead": "orders"}),
        *({"lese": 1}, {"on_expired": "nowhere"}, {"max_in_sequence": 0}),
    ]
    for change in changes:
        assert api.post("/api/settings", queue="orders", **change).status_code == 422, change
    assert api.get("/api/settings", queue="orders").json() == before


def test_workers_bindings_and_health_are_shown(api: Api, broker: mongoq.Broker) -> None:
    broker.bind("news", "mails", "orders")
    assert api.get("/api/workers").json() == {"workers": []}
    assert api.get("/api/bindings").json() == {"bindings": {"news": ["mails", "orders"]}}
    health = api.get("/api/health")
    assert (health.status_code, health.json()["healthy"]) == (200, True)
