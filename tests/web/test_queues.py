"""Queues and their settings by HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from mongoq.web import create_app
from tests.web.conftest import Api


def test_the_state_of_all_queues_is_listed(each_api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(3))
    broker.queue("mails").push(1, delay=60)
    listed = each_api.get("/api/queues").json()["queues"]
    assert [(each["queue"], each["ready"], each["scheduled"]) for each in listed] == [("mails", 0, 1), ("orders", 3, 0)]
    assert listed[1]["at_least"] == []
    [orders] = each_api.get("/api/queues", queue="orders").json()["queues"]
    assert orders["dead_queue"] == "orders.dead"


def test_what_is_used_of_limits_is_part_of_a_queue(each_api: Api, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push(1)
    [orders] = each_api.get("/api/queues", queue="orders").json()["queues"]
    assert orders["limits"] is None
    queue.configure(max_running=2)
    now = datetime.now(UTC)
    holder = {"by": "worker", "number": 2, "wanted": 4, "since": now, "until": now + timedelta(minutes=5)}
    raw.insert_one({"_id": "limit:orders", "holders": [holder]})
    [orders] = each_api.get("/api/queues", queue="orders").json()["queues"]
    limits = orders["limits"]
    assert (limits["max_running"], limits["permits"], limits["rate"], limits["next_start"]) == (2, 2, None, None)
    assert limits["reason"] == "workers hold 2 of 2 permits"
    assert [(each["worker"], each["permits"], each["wanted"]) for each in limits["holders"]] == [("worker", 2, 4)]


def test_a_count_that_ended_at_its_limit_says_so(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(50))
    [orders] = api.get("/api/queues", budget=20).json()["queues"]
    assert "ready" in orders["at_least"]
    assert orders["ready"] < 50


def test_an_unknown_queue_names_the_nearest_ones(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    for path in ("/api/queues", "/api/items", "/api/letters", "/api/letters/groups", "/api/history", "/api/settings"):
        answer = api.get(path, queue="oders")
        assert (answer.status_code, answer.json()["nearest"]) == (404, ["orders"]), path
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_queue_is_paused_and_resumed(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    assert each_api.post("/api/queues/pause", queue="orders").json()["paused"] is True
    assert queue.is_paused()
    assert each_api.post("/api/queues/resume", queue="orders").json()["paused"] is False
    assert not queue.is_paused()


def test_settings_are_shown_and_changed(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    before = each_api.get("/api/settings", queue="orders").json()
    assert (before["history"], before["max_retries"], before["dead"]) == (3600.0, 0, "orders.dead")
    after = each_api.post("/api/settings", queue="orders", max_retries=None, lease=5).json()
    assert (after["history"], after["max_retries"], after["lease"]) == (3600.0, None, 5.0)


def test_durations_of_settings_are_texts_or_seconds(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    after = api.post("/api/settings", queue="orders", lease="1500ms", history="7d").json()
    assert (after["lease"], after["history"]) == (1.5, 604_800.0)
    assert api.post("/api/settings", queue="orders", lease="0s").status_code == 422
    after = api.post("/api/settings", queue="orders", history=None, lease="60s").json()
    assert (after["lease"], after["history"]) == (60.0, None)


@pytest.mark.parametrize(
    "change", [{}, {"lease": -1}, {"max_retries": 1.5}, {"dead": "orders"}, {"lese": 1}, {"lease": "long"}]
)
def test_settings_that_cannot_be_used_change_nothing(
    api: Api, queue: mongoq.Queue[Any], change: dict[str, Any]
) -> None:
    queue.push(1)
    before = api.get("/api/settings", queue="orders").json()
    answer = api.post("/api/settings", queue="orders", **change)
    assert answer.status_code == 422
    assert api.get("/api/settings", queue="orders").json() == before


def test_the_history_of_many_items_is_not_changed_by_a_request(
    open_api: Any, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many(range(6))
    queue.commit_many(queue.reserve_many(6))
    api = open_api(create_app(broker, access="act", max_bulk=5))
    answer = api.post("/api/settings", queue="orders", history=60, existing=True)
    assert (answer.status_code, "more than 5" in answer.json()["detail"]) == (422, True)


def test_a_queue_with_live_items_is_dropped_by_force_only(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(3))
    assert api.post("/api/queues/drop", queue="orders").status_code == 409
    dry = api.post("/api/queues/drop", queue="orders", force=True, dry_run=True).json()
    assert (dry["number"], queue.size()) == (3, 3)
    assert api.post("/api/queues/drop", queue="orders", force=True).json()["number"] == 3
    assert api.get("/api/items", queue="orders").status_code == 404


def test_workers_bindings_and_health_are_shown(each_api: Api, broker: mongoq.Broker) -> None:
    broker.bind("news", "mails", "orders")
    assert each_api.get("/api/workers").json() == {"workers": []}
    assert each_api.get("/api/bindings").json() == {"bindings": {"news": ["mails", "orders"]}}
    health = each_api.get("/api/health")
    assert (health.status_code, health.json()["healthy"]) == (200, True)
