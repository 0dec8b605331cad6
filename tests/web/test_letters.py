"""Dead letters and history by HTTP: lists, groups, replay, moves and deletion."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.web import create_app
from tests.web.conftest import Api
from tests.web.test_items import list_all


def bury(queue: mongoq.Queue[Any], *payloads: Any, reason: str = "no such city", error: Any = None) -> None:
    """Push items, and bury them."""
    queue.push_many(payloads)
    for item in queue.reserve_many(len(payloads)):
        queue.bury(item, reason=reason, error=error)


@pytest.fixture
def letters(queue: mongoq.Queue[Any]) -> mongoq.DeadQueue:
    """Six letters with two reasons."""
    bury(queue, *range(4))
    bury(queue, 4, 5, reason="gone", error=ValueError("x"))
    return queue.dead


@pytest.mark.parametrize("name", ["orders", "orders.dead"])
def test_letters_are_listed_by_either_name(
    each_api: Api, queue: mongoq.Queue[Any], letters: mongoq.DeadQueue, name: str
) -> None:
    listed = list_all(each_api, "/api/letters", queue=name, limit=4)
    assert [letter["payload"] for letter in listed] == list(range(6))
    assert listed[0]["origin"]["reason"] == "no such city"
    assert len(list_all(each_api, "/api/letters", queue=name, error="ValueError", limit=1)) == 2


def test_groups_count_letters_by_reason_and_error(each_api: Api, letters: mongoq.DeadQueue) -> None:
    answer = each_api.get("/api/letters/groups", queue="orders").json()
    found = [(group["number"], group["reason"], group["error"]) for group in answer["groups"]]
    assert (found, answer["more"]) == ([(4, "no such city", None), (2, "gone", "ValueError")], False)


def test_letters_go_back(each_api: Api, queue: mongoq.Queue[Any], letters: mongoq.DeadQueue) -> None:
    dry = each_api.post("/api/letters/replay", queue="orders", reason="gone", dry_run=True).json()
    assert (dry["number"], letters.size()) == (2, 6)
    done = each_api.post("/api/letters/replay", queue="orders", reason="gone").json()
    assert (done["number"], done["queue"], queue.size(), letters.size()) == (2, "orders.dead", 2, 4)


def test_letters_with_ids_go_elsewhere(api: Api, broker: mongoq.Broker, letters: mongoq.DeadQueue) -> None:
    ids, missing = [str(item.id) for item in letters.peek(2)], str(ObjectId())
    done = api.post("/api/letters/move", queue="orders", ids=[*ids, missing], to="repair").json()
    assert (done["number"], done["missing"]) == (2, [missing])
    assert [str(item.id) for item in broker.queue("repair").peek(9)] == ids
    assert api.post("/api/letters/move", queue="orders", to="orders.dead").status_code == 422
    assert api.post("/api/letters/move", queue="orders", to="orders.dead", dry_run=True).status_code == 422
    assert api.post("/api/letters/move", queue="orders").status_code == 422


def test_letters_are_dropped(api: Api, letters: mongoq.DeadQueue) -> None:
    assert api.post("/api/letters/drop", queue="orders", error="ValueError", dry_run=True).json()["number"] == 2
    assert api.post("/api/letters/drop", queue="orders", error="ValueError").json()["number"] == 2
    assert letters.size() == 4


def test_a_change_is_limited(
    open_api: Any, broker: mongoq.Broker, queue: mongoq.Queue[Any], letters: mongoq.DeadQueue
) -> None:
    api = open_api(create_app(broker, access="act", max_bulk=4))
    assert api.post("/api/letters/replay", queue="orders", limit=5).status_code == 422
    assert api.post("/api/letters/replay", queue="orders", dry_run=True).json()["number"] == 4
    assert api.post("/api/letters/replay", queue="orders").json()["number"] == 4
    assert (queue.size(), letters.size()) == (4, 2)


@pytest.mark.parametrize(
    "choice",
    [
        {"ids": ["x"]},
        {"ids": [str(ObjectId())], "reason": "gone"},
        {"where": {"$where": "1"}},
        {"reason": 1},
        {"limit": 0},
        {"queue": "orders", "reasons": "gone"},
    ],
    ids=range(6),
)
@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_choice_that_cannot_be_used_changes_nothing(
    api: Api, letters: mongoq.DeadQueue, choice: dict[str, Any], verb: str
) -> None:
    assert api.post(f"/api/letters/{verb}", **{"queue": "orders", **choice}).status_code == 422
    assert letters.size() == 6


def test_two_callers_send_each_letter_once(open_api: Any, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    bury(queue, *range(200))
    numbers: list[int] = []

    def send(api: Api) -> None:
        numbers.append(api.post("/api/letters/replay", queue="orders").json()["number"])

    apis = [open_api(create_app(broker, access="act")) for _ in range(4)]
    for api in apis:  # FastAPI makes its routes at the first call, and filters warnings meanwhile, of all threads
        assert api.post("/api/letters/replay", queue="orders", dry_run=True).json()["number"] == 200
    callers = [threading.Thread(target=send, args=(api,)) for api in apis]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sum(numbers) == 200
    assert (queue.size(), queue.dead.size()) == (200, 0)


def test_the_history_is_searched_and_replayed(each_api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([{"n": n} for n in range(5)])
    queue.commit_many(queue.reserve_many(5))
    found = list_all(each_api, "/api/history", queue="orders", since="1h", where='{"n": {"$gt": 2}}', limit=1)
    assert [item["payload"]["n"] for item in found] == [3, 4]
    assert list_all(each_api, "/api/history", queue="orders", until="1h") == []
    body = {"queue": "orders", "where": {"n": {"$gt": 2}}, "since": "1h", "to": "again"}
    assert each_api.post("/api/history/replay", **body, dry_run=True).json()["number"] == 2
    assert each_api.post("/api/history/replay", **body).json()["number"] == 2
    repeated = each_api.post("/api/history/replay", **body).json()
    assert (repeated["number"], repeated["already"], broker.queue("again").size()) == (0, 2, 2)


def test_a_replayed_item_may_get_another_payload(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push({"city": None})
    queue.pop()
    done = api.post("/api/history/replay", queue="orders", ids=[str(id)], payload={"city": "Rome"}).json()
    assert (done["number"], [item.payload for item in queue.peek(9)]) == (1, [{"city": "Rome"}])
    assert api.post("/api/history/replay", queue="orders", payload=1).status_code == 422
    assert api.post("/api/history/replay", queue="orders", ids=[str(id), str(ObjectId())], payload=1).status_code == 422


@pytest.mark.parametrize(
    ("parameters", "field"), [({"since": "soon"}, "since"), ({"since": "1h", "until": "2h"}, "until")]
)
def test_a_time_that_cannot_be_used_is_named(
    api: Api, queue: mongoq.Queue[Any], parameters: dict[str, Any], field: str
) -> None:
    queue.push(1)
    answer = api.get("/api/history", queue="orders", **parameters)
    assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, field)


def test_the_calls_of_ziggurat_work_on_dead_letters(
    each_api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any], letters: mongoq.DeadQueue
) -> None:
    listed = each_api.request("GET", "/v1/dead_set?count=2&topic-entity=orders&channel=")
    assert listed.json() == {"messages": [0, 1]}
    replayed = each_api.post("/v1/dead_set/replay", count="3", topic_entity="orders")
    assert (replayed.status_code, queue.size(), letters.size()) == (200, 3, 3)
    deleted = each_api.request("DELETE", "/v1/dead_set?count=2&topic-entity=orders")
    assert (deleted.status_code, letters.size()) == (200, 1)
    bury(broker.queue("orders.fast"), 7)
    with_channel = each_api.request("GET", "/v1/dead_set?count=2&topic-entity=orders&channel=fast")
    assert with_channel.json() == {"messages": [7]}


@pytest.mark.parametrize("query", ["", "count=0&topic-entity=orders", "count=x&topic-entity=orders", "count=3"])
def test_a_call_of_ziggurat_that_cannot_be_carried_out_says_so_in_its_form(
    api: Api, letters: mongoq.DeadQueue, query: str
) -> None:
    for method in ("GET", "DELETE"):
        answer = api.request(method, f"/v1/dead_set?{query}")
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert letters.size() == 6
    unknown = api.request("GET", "/v1/dead_set?count=1&topic-entity=oders")
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
