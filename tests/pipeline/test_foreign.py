"""Items of other programs, with anything in their fields: a stage with a filter gets past them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import until

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def odd(kind: str) -> list[dict[str, Any]]:
    """Return documents with one odd field each."""
    changes: list[dict[str, Any]] = [
        {"once": {"a": 1}},
        {"once": [1]},
        {"once": "soon"},
        {"priority": ...},
        {"priority": None},
        {"priority": {"a": 1}},
        {"priority": [1]},
        {"_id": {"a": kind}},
        {"_id": kind},
        {"attempts": "3"},
        {"when": [LONG_AGO]},
        {"hops": "x"},
        {"headers": "x"},
        {"headers": [1]},
    ]
    usual = {"q": "raw", "payload": {"kind": kind}, "when": LONG_AGO, "priority": 0, "attempts": 0}
    documents = [{"_id": ObjectId(), **usual, **change} for change in changes]
    return [{name: value for name, value in document.items() if value is not ...} for document in documents]


def worked(broker: mongoq.Broker, raw: Any, pipeline: mongoq.Pipeline) -> None:
    """Let the pipeline work until nothing is left that is ready."""
    with pipeline.start(broker):
        until(lambda: not raw.count_documents({"q": "raw", "when": {"$type": "date"}}))


@pytest.mark.parametrize("rest", [mongoq.Drop(), mongoq.Move("rest")], ids=["drop", "move"])
def test_odd_documents_block_no_stage(broker: mongoq.Broker, raw: Any, rest: Any) -> None:
    queue = broker.queue("raw")
    usual = [queue.push({"kind": "fits"})]
    fit, misfit = odd("fits"), odd("does not")
    raw.insert_many([*fit, *misfit])
    usual.append(queue.push({"kind": "fits"}))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"], trail=True)

    @pipeline.stage("raw", to=["out", "rest"], where={"kind": "fits"}, otherwise=rest, lease=5)
    def work(_: Any) -> Any:
        return mongoq.Move("out")

    worked(broker, raw, pipeline)
    assert raw.count_documents({"q": "out", "_id": {"$in": usual}}) == 2
    for document in fit:
        assert raw.find_one({"_id": document["_id"]})["q"] in ("out", "line.errors"), document
    for document in misfit:
        stored = raw.find_one({"_id": document["_id"]})
        assert (stored and stored["q"]) == (None if rest == mongoq.Drop() else "rest"), document


def test_an_item_of_an_odd_id_that_does_not_fit_counts_as_screened(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("raw").push({"kind": "fits"})
    raw.insert_one(odd("does not")[7])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", where={"kind": "fits"}, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        return payload

    counts = pipeline.drain(broker).stages["work"]
    assert (counts.moved, counts.screened, counts.settled) == (1, 1, 2)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_odd_documents_block_no_fork(broker: mongoq.Broker, raw: Any, delivery: Any) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])

    @pipeline.stage("raw", to=["out", "rest"], lease=5, max_retries=0, delivery=delivery)
    def work(_: Any) -> Any:
        return mongoq.Fork([mongoq.Move("out"), mongoq.Move("rest")])

    documents = odd("fits")
    raw.insert_many(documents)
    broker.queue("raw").push({"kind": "fits"})
    worked(broker, raw, pipeline)
    out, rest, errors, left = (raw.count_documents({"q": name}) for name in ("out", "rest", "line.errors", "raw"))
    assert out == rest >= 1
    assert left + out + errors == len(documents) + 1
