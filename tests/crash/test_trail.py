"""The trail that claims are checked against is what really happened to the items, in the words of the handlers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.crash import stations, trail
from tests.crash.claims import broken
from tests.crash.evidence import Evidence
from tests.crash.handler import Handler
from tests.crash.ledger import Ledger


class LoadedDice(random.Random):
    """Dice that always fall on the same side."""

    def random(self) -> float:
        return 0.4


def payload(trouble: str) -> dict[str, Any]:
    return {"serial": trouble, "trouble": trouble, "where": "in", "hops": 0, "mover": None}


@pytest.fixture(scope="module")
def evidence(client: MongoClient[Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """What a worker leaves that nobody has killed, of an item of each trouble."""
    database, path = client["test_trail"], tmp_path_factory.mktemp("trail") / "ledger"
    with mongoq.Broker(database["mongoq"]) as broker:
        stations.prepare(broker)
        start, ledger = trail.begin(database["mongoq"]), Ledger(path)
        ledger.write(broker.queue("in").push(payload(trouble)) for trouble in ("none", "flaky", "poison", "hopeless"))
        ledger.close()
        worker, handler = mongoq.Worker(broker), Handler(database, LoadedDice())
        for queue in (stations.FIRST, stations.SECOND):
            worker.consumer(queue, lease=30, retry=mongoq.Fixed(0))(handler)
        worker.run(drain=True)
    yield Evidence.gather(database, path, start)
    client.drop_database(database)


@pytest.mark.parametrize(
    ("trouble", "kinds"),
    [
        ("none", ["pushed", "moved", "committed"]),
        ("flaky", ["pushed", "handed back", "handed back", "moved", "committed"]),
        ("poison", ["pushed", *["handed back"] * stations.MAX_RETRIES, "buried"]),
        ("hopeless", ["pushed", "buried"]),
    ],
)
def test_every_turn_of_an_item_is_on_the_trail(evidence: Evidence, trouble: str, kinds: list[str]) -> None:
    id = next(item["_id"] for item in evidence.items if item["payload"]["serial"] == trouble)
    assert [turn.kind for turn in evidence.turns if turn.item == id and turn.kind != "reserved"] == kinds


def test_each_turn_names_the_reservation_that_it_was_taken_under(evidence: Evidence) -> None:
    tokens: dict[Any, Any] = {}
    for turn in evidence.turns:
        if turn.kind == "reserved":
            tokens[turn.item] = turn.token
        assert turn.token == (None if turn.kind == "pushed" else tokens[turn.item])


def test_each_run_has_left_its_mark_under_its_reservation(evidence: Evidence) -> None:
    reserved = {(turn.item, turn.token) for turn in evidence.turns if turn.kind == "reserved"}
    assert {(mark["_id"]["item"], mark["_id"]["token"]) for mark in evidence.runs} == reserved
    assert all("ended" in mark for mark in evidence.runs)


def test_what_was_acknowledged_is_what_was_pushed(evidence: Evidence) -> None:
    assert set(evidence.acknowledged) == {item["_id"] for item in evidence.items}
    assert broken(evidence) == []


def test_what_is_deleted_or_replaced_behind_the_queue_is_on_the_trail(broker: mongoq.Broker, raw: Any) -> None:
    stations.prepare(broker)
    start = trail.begin(raw)
    deleted, replaced = (broker.queue("in").push(payload("none")) for _ in range(2))
    raw.delete_one({"_id": deleted})
    raw.replace_one({"_id": replaced}, {"q": "out"})
    turns = list(trail.read(raw, start))
    assert [(turn.item, turn.kind) for turn in turns[2:]] == [(deleted, "removed"), (replaced, "removed")]
