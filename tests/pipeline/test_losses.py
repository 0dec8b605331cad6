"""A pipeline whose requests or replies the network loses: nothing is lost, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import QUICK, counted
from tests.pipeline.graphs import ERRORS, OUT, RAW, graph, inputs, outputs
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.trial import fed, outcome
from tests.proxy import Kind, Proxy
from tests.waiting import until

ITEMS = 60


@contextmanager
def worked(
    proxied: tuple[Proxy, mongoq.Broker],
    broker: mongoq.Broker,
    raw: Any,
    pipeline: mongoq.Pipeline,
    *losses: tuple[Kind, str],
) -> Iterator[None]:
    """Let a pipeline work until it has nothing left to do; what is pushed meanwhile meets the losses."""
    proxy, own = proxied
    ends = {OUT, ERRORS, *(queue for graph in GRAPHS.values() for queue in graph.comes)}

    def is_any_left() -> bool:
        """Look into all queues at one moment: with a look for each, an item that goes round would be in none."""
        items = {"q": {"$exists": True, "$nin": sorted(ends)}, "when": {"$exists": True}}
        with broker.transaction() as tx:
            return raw.find_one(items, session=tx.session) is not None

    with pipeline.start(own):
        until(broker.workers)
        for kind, command in losses:
            proxy.lose(kind, command, times=1)
        yield
        until(lambda: not is_any_left())


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_graph_survives_losses(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, raw: Any, kind: Kind
) -> None:
    losses = [(kind, command) for command in ("find", "update", "delete", "insert", "findAndModify")]
    with worked(proxied, broker, raw, graph(lease=2), *losses * 2):
        broker.queue(RAW).push_many(inputs(ITEMS))
    out, errors = outputs(ITEMS)
    assert outcome(broker) == {OUT: counted(out), ERRORS: counted(errors)}
    assert proxied[0].lost >= 4, "of find and update, which there are in any case"


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_forks_survive_losses(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, raw: Any, kind: Kind
) -> None:
    forking = GRAPHS["fork-loop"]
    losses = [(kind, command) for command in ("update", "delete", "insert", "commitTransaction")]
    with worked(proxied, broker, raw, forking.pipeline(), *losses * 2):
        fed(broker, "fork-loop")
    assert outcome(broker) == {queue: counted(coming) for queue, coming in forking.comes.items()}
    assert proxied[0].lost == 8


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_at_most_once_holds_when_something_is_lost(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, raw: Any, kind: Kind
) -> None:
    pipeline = mongoq.Pipeline("line", errors=ERRORS, outputs=OUT)
    runs: list[int] = []

    @pipeline.stage(RAW, to=OUT, delivery="at-most-once", lease=2, retry=QUICK)
    def work(payload: int) -> Any:
        runs.append(payload)
        return payload

    with worked(proxied, broker, raw, pipeline, *[(kind, "delete"), (kind, "insert")] * 2):
        broker.queue(RAW).push_many(range(12))
    assert len(runs) == len(set(runs)), "an item has run twice"
    assert outcome(broker) == {OUT: counted(runs)}
    assert proxied[0].lost > 0
