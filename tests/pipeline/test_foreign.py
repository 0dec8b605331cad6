"""Items of other programs, with anything in their fields: a stage with a filter gets past them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import PATIENCE

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ODD: Mapping[str, Mapping[str, Any]] = {
    "once is a document": {"once": {"a": 1}},
    "once is a list": {"once": [1]},
    "once is a text": {"once": "soon"},
    "no priority": {"priority": ...},
    "priority is null": {"priority": None},
    "priority is a document": {"priority": {"a": 1}},
    "priority is a list": {"priority": [1]},
    "the id is a document": {"_id": {"a": 1}},
    "the id is a text": {"_id": "x"},
    "attempts are a text": {"attempts": "3"},
    "when is a list": {"when": [LONG_AGO]},
    "hops are a text": {"hops": "x"},
    "headers are a text": {"headers": "x"},
    "headers are a list": {"headers": [1]},
}


def odd(kind: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    usual = {"_id": ObjectId(), "q": "raw", "payload": {"kind": kind}, "when": LONG_AGO, "priority": 0, "attempts": 0}
    return {name: value for name, value in {**usual, **changes}.items() if value is not ...}


@pytest.mark.parametrize("kind", ["fits", "does not"])
@pytest.mark.parametrize("rest", [mongoq.Drop(), mongoq.Move("rest")], ids=["drop", "move"])
@pytest.mark.parametrize("changes", list(ODD.values()), ids=list(ODD))
def test_an_odd_document_blocks_no_stage(
    broker: mongoq.Broker, raw: Any, kind: str, rest: Any, changes: Mapping[str, Any]
) -> None:
    queue = broker.queue("raw")
    queue.push({"kind": "fits"})
    document = odd(kind, changes)
    raw.insert_one(document)
    queue.push({"kind": "fits"})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"], trail=True)

    @pipeline.stage("raw", to=["out", "rest"], where={"kind": "fits"}, otherwise=rest, lease=5)
    def work(_: Any) -> Any:
        return mongoq.Move("out")

    with pipeline.start(broker) as run:
        deadline = time.monotonic() + PATIENCE
        while raw.count_documents({"q": "raw", "when": {"$type": "date"}}):
            assert time.monotonic() < deadline
            run.wait(0.02)
    stored_document = raw.find_one({"_id": document["_id"]})
    assert raw.count_documents({"q": "out", "_id": {"$ne": document["_id"]}}) == 2
    if kind == "fits":
        assert stored_document["q"] in ("out", "line.errors")
    else:
        assert (stored_document and stored_document["q"]) == (None if rest == mongoq.Drop() else "rest")


def test_an_item_of_an_odd_id_that_does_not_fit_counts_as_screened(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("raw").push({"kind": "fits"})
    raw.insert_one(odd("does not", {"_id": {"a": 1}}))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", where={"kind": "fits"}, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        return payload

    counts = pipeline.drain(broker).stages["work"]
    assert (counts.moved, counts.screened, counts.settled) == (1, 1, 2)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
@pytest.mark.parametrize("changes", list(ODD.values()), ids=list(ODD))
def test_an_odd_document_blocks_no_fork(
    broker: mongoq.Broker, raw: Any, delivery: Any, changes: Mapping[str, Any]
) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])

    @pipeline.stage("raw", to=["out", "rest"], lease=5, max_retries=0, delivery=delivery)
    def work(_: Any) -> Any:
        return mongoq.Fork([mongoq.Move("out"), mongoq.Move("rest")])

    raw.insert_one(odd("fits", changes))
    broker.queue("raw").push({"kind": "fits"})
    with pipeline.start(broker) as run:
        deadline = time.monotonic() + PATIENCE
        while raw.count_documents({"q": "raw", "when": {"$type": "date"}}):
            assert time.monotonic() < deadline
            run.wait(0.02)
    out, rest, errors = (raw.count_documents({"q": name}) for name in ("out", "rest", "line.errors"))
    assert out == rest >= 1
    assert raw.count_documents({"q": "raw"}) + out + errors == 2
