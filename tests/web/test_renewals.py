"""Renewals of open pages: shared by their readers, at a limited pace, and never older than what a reader has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mongoq
from tests.web.conftest import HTML, Api, make_users, open_page

RENEWAL = {**HTML, "x-mongoq-renewal": "yes"}


def renew(api: Api, path: str, **headers: str) -> Any:
    answer = api.request("GET", path, headers={**RENEWAL, **headers})
    assert answer.status_code == 200, answer.text
    return answer


def test_readers_of_a_page_share_its_renewals(
    each_api: Api, broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.web.readings.MIN_PAUSE_SECONDS", 100.0)
    queue = broker.queue("orders")
    queue.push("first")
    first = renew(each_api, "/queue?name=orders")
    assert ("first" in first.text, "x-mongoq-again" in first.headers) == (True, False)
    queue.push("second")
    shared = renew(each_api, "/queue?name=orders")
    assert shared.text == first.text
    assert int(shared.headers["x-mongoq-again"]) >= 1
    # Another page, and one that a reader opens, are made anew; no renewal shows less than a reader has seen.
    assert "second" in renew(each_api, "/queue?name=orders&state=ready").text
    assert "second" in open_page(each_api, "/queue", name="orders")
    assert "second" in renew(each_api, "/queue?name=orders").text


def test_a_renewal_shows_nobody_else(open_app: Callable[..., Api], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    api = open_app(access=make_users("nora:act:a-secret-of-nora\nbob:read:a-secret-of-bob\n"))
    pages = {
        user: renew(api, "/queue?name=orders", authorization=f"Bearer a-secret-of-{user}").text
        for user in ("nora", "bob")
    }
    assert ("Pause this queue" in pages["nora"], "Pause this queue" in pages["bob"]) == (True, False)
    assert not any(user in page for user in ("nora", "bob") for page in pages.values())


def test_a_renewal_of_a_page_that_is_none_is_not_kept(api: Api, broker: mongoq.Broker) -> None:
    assert api.request("GET", "/queue?name=orders", headers=RENEWAL).status_code == 404
    assert api.request("GET", "/pipeline?name=none", headers=RENEWAL).status_code == 404
    broker.queue("orders").push(1)
    assert "x-mongoq-again" not in renew(api, "/queue?name=orders").headers
