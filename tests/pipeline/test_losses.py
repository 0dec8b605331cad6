"""A pipeline whose requests or replies the network loses: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mongoq
from mongoq.protocol.base import retry
from tests.pipeline.conftest import QUICK, counted, is_busy
from tests.pipeline.graphs import ERRORS, OUT, RAW, graph, inputs, outputs
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.trial import fed, outcome
from tests.proxy import Kind, Proxy

ITEMS = 60
COMMANDS = ("find", "update", "delete", "insert", "findAndModify")


@contextmanager
def worked(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, pipeline: mongoq.Pipeline, *losses: tuple[Kind, str]
) -> Iterator[None]:
    """Let a pipeline work until it has nothing left to do; what is pushed meanwhile meets the losses."""
    proxy, own = proxied
    with pipeline.start(own) as run:
        while not broker.workers():
            time.sleep(0.02)
        for kind, command in losses:
            proxy.lose(kind, command, times=1)
        yield
        sources = {source for stage in pipeline.graph.stages for source in stage.sources}
        while is_any_in(broker, sources) or is_busy(run):
            assert not run.wait(0.1)


def is_any_in(broker: mongoq.Broker, queues: set[str]) -> bool:
    """Look into all of them at one moment: with a look for each, an item that goes round would be in none of them."""
    filter = {"q": {"$in": sorted(queues)}, "when": {"$exists": True}}
    with broker.transaction() as tx:
        raw = broker._driver._backend.targets["collection"]
        return raw.find_one(filter, session=tx.session) is not None


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_graph_survives_losses(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, kind: Kind, command: str
) -> None:
    with worked(proxied, broker, graph(lease=2), *[(kind, command)] * 4):
        broker.queue(RAW).push_many(inputs(ITEMS))
    out, errors = outputs(ITEMS)
    assert outcome(broker) == {OUT: counted(out), ERRORS: counted(errors)}
    if command in ("find", "update"):  # which there are in any case
        assert proxied[0].lost > 0


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("command", ["update", "delete", "insert", "commitTransaction"])
def test_forks_survive_losses(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, kind: Kind, command: str
) -> None:
    forking = GRAPHS["fork-loop"]
    with worked(proxied, broker, forking.pipeline(), *[(kind, command)] * 4):
        fed(broker, "fork-loop")
    assert outcome(broker) == {queue: counted(coming) for queue, coming in forking.comes.items()}
    assert proxied[0].lost == 4


def test_a_fork_whose_commit_happened_and_stays_unknown_is_done_once(
    proxied: tuple[Proxy, mongoq.Broker],
    broker: mongoq.Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retry, "RETRY_LIMIT_SECONDS", 0.05)
    forking = GRAPHS["fork-loop"]
    with worked(proxied, broker, forking.pipeline(), *[("reply", "commitTransaction")] * 30):
        fed(broker, "fork-loop")
    assert outcome(broker) == {queue: counted(coming) for queue, coming in forking.comes.items()}
    assert "was not settled" in caplog.text, "it was given up, and then found settled"


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("command", ["delete", "insert"])
def test_at_most_once_holds_when_something_is_lost(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, kind: Kind, command: str
) -> None:
    pipeline = mongoq.Pipeline("line", errors=ERRORS, outputs=OUT)
    runs: list[int] = []

    @pipeline.stage(RAW, to=OUT, delivery="at-most-once", lease=2, retry=QUICK)
    def work(payload: int) -> Any:
        runs.append(payload)
        return payload

    with worked(proxied, broker, pipeline, *[(kind, command)] * 3):
        broker.queue(RAW).push_many(range(12))
    assert len(runs) == len(set(runs)), "an item has run twice"
    assert outcome(broker) == {OUT: counted(runs)}
    assert proxied[0].lost > 0
