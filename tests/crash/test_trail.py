"""The trail that claims are checked against is what really happened to the items, in the words of the handlers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

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


KINDS = {
    "none": ["pushed", "moved", "committed"],
    "flaky": ["pushed", "handed back", "handed back", "moved", "committed"],
    "poison": ["pushed", *["handed back"] * stations.MAX_RETRIES, "buried"],
    "hopeless": ["pushed", "buried"],
}
"""The turns of an item of each trouble, beside its reservations."""


def test_every_turn_of_an_item_is_on_the_trail_under_its_reservation(
    client: MongoClient[Any], database: str, broker: mongoq.Broker, raw: Any, tmp_path: Path
) -> None:
    """What a worker leaves that nobody has killed."""
    stations.prepare(broker)
    start, ledger = trail.begin(raw), Ledger(tmp_path / "ledger")
    ledger.write(broker.queue("in").push(payload(trouble)) for trouble in KINDS)
    ledger.close()
    worker, handler = mongoq.Worker(broker), Handler(client[database], LoadedDice())
    for queue in (stations.FIRST, stations.SECOND):
        worker.consumer(queue, lease=30, retry=mongoq.Fixed(0))(handler)
    worker.run(drain=True)
    evidence = Evidence.gather(client[database], tmp_path / "ledger", start)

    troubles = {item["_id"]: item["payload"]["serial"] for item in evidence.items}
    kinds: dict[str, list[str]] = {trouble: [] for trouble in KINDS}
    tokens: dict[Any, Any] = {}
    for turn in evidence.turns:
        if turn.kind == "reserved":
            tokens[turn.item] = turn.token
        else:
            kinds[troubles[turn.item]].append(turn.kind)
        assert turn.token == (None if turn.kind == "pushed" else tokens[turn.item])
    assert kinds == KINDS

    reserved = {(turn.item, turn.token) for turn in evidence.turns if turn.kind == "reserved"}
    assert {(mark["_id"]["item"], mark["_id"]["token"]) for mark in evidence.runs} == reserved
    assert all("ended" in mark for mark in evidence.runs)
    assert set(evidence.acknowledged) == troubles.keys()
    assert broken(evidence) == []


def test_what_is_deleted_or_replaced_behind_the_queue_is_on_the_trail(broker: mongoq.Broker, raw: Any) -> None:
    stations.prepare(broker)
    start = trail.begin(raw)
    deleted, replaced = (broker.queue("in").push(payload("none")) for _ in range(2))
    raw.delete_one({"_id": deleted})
    raw.replace_one({"_id": replaced}, {"q": "out"})
    turns = list(trail.read(raw, start))
    assert [(turn.item, turn.kind) for turn in turns[2:]] == [(deleted, "removed"), (replaced, "removed")]
