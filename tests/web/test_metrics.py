"""Metrics by HTTP: what a scrape of the app returns."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient

import mongoq
from mongoq.web import Users, create_app
from tests.web.conftest import Api

ACCEPT = {"Accept": "text/html,text/plain"}


def read_samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a scrape, by name and labels."""
    families = text_string_to_metric_families(text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_a_scrape_has_the_state_of_all_queues(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(3))
    queue.reserve()
    answer = each_api.request("GET", "/metrics", headers=ACCEPT)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    samples = read_samples(answer.text)
    assert samples["mongoq_up",] == 1
    assert samples["mongoq_items", "orders", "ready"] == 2
    assert samples["mongoq_items", "orders", "reserved"] == 1


def test_scrapes_share_a_reading(api: Api, queue: mongoq.Queue[Any], client: MongoClient[Any], database: str) -> None:
    queue.push(1)
    api.get("/metrics")
    client[database].command("profile", 2)
    try:
        assert api.get("/metrics").status_code == 200
        assert list(client[database]["system.profile"].find({"ns": f"{database}.mongoq"})) == []
    finally:
        client[database].command("profile", 0)


def test_a_scrape_needs_the_level_read(broker: mongoq.Broker, open_api: Any) -> None:
    api = open_api(create_app(broker, access=Users("grafana:read:a-secret-of-grafana")))
    assert api.get("/metrics").status_code == 401
    headers = {"Authorization": "Bearer a-secret-of-grafana"}
    assert "mongoq_up 1.0" in api.request("GET", "/metrics", headers=headers).text


def test_a_server_that_is_away_is_down(open_api: Any) -> None:
    api = open_api(create_app("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"))
    answer = api.get("/metrics")
    assert (answer.status_code, "mongoq_up 0.0" in answer.text) == (200, True)


def test_without_the_extra_the_answer_names_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = api.request("GET", "/metrics", headers=ACCEPT)
    assert (answer.status_code, answer.headers["content-type"]) == (501, "application/problem+json")
    assert "mongoq-driver[prometheus]" in answer.json()["detail"]
