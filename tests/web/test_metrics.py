"""Metrics by HTTP: what a scrape of the app returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import mongoq
from tests.web.conftest import Api, make_users

ACCEPT = {"Accept": "text/html,text/plain"}


def test_a_scrape_has_the_state_of_all_queues(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(3))
    queue.reserve()
    answer = api.request("GET", "/metrics", headers=ACCEPT)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    for sample in (
        "mongoq_up 1.0",
        'mongoq_items{queue="orders",state="ready"} 2.0',
        'mongoq_items{queue="orders",state="reserved"} 1.0',
    ):
        assert sample in answer.text.splitlines()


def test_a_scrape_needs_the_level_read(open_app: Callable[..., Api]) -> None:
    api = open_app(access=make_users("grafana:read:a-secret-of-grafana"))
    assert api.get("/metrics").status_code == 401
    headers = {"Authorization": "Bearer a-secret-of-grafana"}
    assert "mongoq_up 1.0" in api.request("GET", "/metrics", headers=headers).text


def test_without_the_extra_the_answer_names_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = api.request("GET", "/metrics", headers=ACCEPT)
    assert (answer.status_code, answer.headers["content-type"]) == (501, "application/problem+json")
    assert "mongoq-driver[prometheus]" in answer.json()["detail"]
