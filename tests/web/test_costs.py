"""Costs of pages: documents that the server examines, by its profiler, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from bench.deep_collection import fill_collection
from mongoq.web import readings
from mongoq.web.pages import changes, routes
from mongoq.web.readings import MAX_GROUPS
from mongoq.web.routes import history, letters
from tests.web.conftest import Api
from tests.web.test_pages import HTML, open_page

DEPTH, GROUPED, BUDGET, LISTED = 2_000, 200, 400, 50


@pytest.fixture
def examined(
    client: MongoClient[Any], broker: mongoq.Broker, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], int]]:
    """Return the documents that the commands have examined since the last call."""
    monkeypatch.setattr(readings, "GROUPED_LETTERS", GROUPED)
    monkeypatch.setattr(routes, "QUEUE_BUDGET", BUDGET)
    broker.ensure_indexes()
    fill_collection(client[database]["mongoq"], DEPTH)
    profiled = client[database]
    profiled.command("profile", 2)

    def read() -> int:
        entries = list(profiled["system.profile"].find({"ns": f"{database}.mongoq"}))
        profiled.command("profile", 0)
        profiled.drop_collection("system.profile")
        profiled.command("profile", 2)
        assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
        return sum(entry.get("docsExamined", 0) for entry in entries)

    yield read
    profiled.command("profile", 0)


def test_groups_of_letters_are_bounded_and_shared(api: Api, examined: Callable[[], int]) -> None:
    examined()
    page = open_page(api, "/letters", queue="orders")
    assert "there are more than 200" in page
    assert "at least " in page
    assert "These are the 100 largest groups" in page
    first = examined()
    assert GROUPED <= first <= GROUPED + LISTED + 10
    open_page(api, "/letters", queue="orders")
    assert examined() <= LISTED + 10


def test_the_call_for_groups_is_bounded(api: Api, examined: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "COUNT_LIMIT", GROUPED)
    examined()
    answer = api.get("/api/letters/groups", queue="orders").json()
    assert (len(answer["groups"]), answer["more"]) == (MAX_GROUPS, True)
    assert examined() <= GROUPED + 10


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("letters/drop", {"action": "drop", "queue": "orders.dead", "reason": "nothing like this"}),
        ("letters/replay", {"action": "replay", "queue": "orders.dead", "reason": "nothing at all"}),
        ("history/replay", {"action": "replay_history", "queue": "orders", "where": '{"no": "no"}'}),
    ],
    ids=["drop", "letters", "history"],
)
def test_questions_before_a_change_examine_a_limited_number_of_items(
    api: Api, examined: Callable[[], int], monkeypatch: pytest.MonkeyPatch, path: str, form: dict[str, str]
) -> None:
    body: dict[str, Any] = {"queue": "orders", "where": {"nothing": "like this"}, "dry_run": True}
    for module in (letters, history, changes):
        monkeypatch.setattr(module, "COUNT_LIMIT", GROUPED)
    examined()
    dry = api.post(f"/api/{path}", **body).json()
    assert (dry["number"], dry["exact"]) == (0, False)
    assert examined() <= 2 * GROUPED + 20
    asked = api.request("POST", "/change", data=form, headers=HTML)
    assert "that may lie behind the first 200 items, where none is" in asked.text
    assert examined() <= 2 * GROUPED + 20
    # What lies within the limit is counted, and a dry run adds what it knows.
    monkeypatch.setattr(letters, "COUNT_LIMIT", 10 * DEPTH)
    monkeypatch.setattr(history, "COUNT_LIMIT", 10 * DEPTH)
    assert api.post(f"/api/{path}", **body).json()["exact"] is True


@pytest.mark.parametrize("state", ["live", "processed", "scheduled"])
def test_the_page_of_a_queue_is_bounded(api: Api, examined: Callable[[], int], state: str) -> None:
    examined()
    assert "more than" in open_page(api, "/queue", name="orders", state=state)
    assert examined() <= BUDGET + LISTED + 30


def test_all_overviews_share_one_reading(api: Api, examined: Callable[[], int]) -> None:
    open_page(api, "/")
    examined()
    open_page(api, "/")
    assert examined() == 0
