"""Arrivals of a join whose holder is gone, on a server so slow that all of them are not claimed within a lease."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import QUICK, Site
from tests.waiting import until

LEASE = 4.0
NUMBER = 40
SLOW = 120
"""Milliseconds of a claim: all take longer than the lease, with both queues at once or one after the other."""


@pytest.fixture
def slow(client: Any) -> Iterator[None]:
    """A server that takes its time for each claim of a single item."""
    how = {"failCommands": ["findAndModify"], "blockConnection": True, "blockTimeMS": SLOW}
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=how)
    yield
    client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.prove
def test_what_has_lapsed_is_settled_before_it_lapses_again(site: Site, slow: None) -> None:
    assert NUMBER * SLOW / 1_000 > LEASE
    lapsed = datetime.now(UTC) + timedelta(seconds=1)
    for name in "ab":
        queue = site.queue(name)
        queue.push_many([{"n": n} for n in range(NUMBER)])
        assert len(queue.reserve_many(NUMBER, lease=0.1)) == NUMBER
    until(lambda: datetime.now(UTC) > lapsed)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], on="n", to="out", lease=LEASE, retry=QUICK)
    def unite(a: Any, b: Any) -> int:
        return a["n"] + b["n"]

    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [*range(0, 2 * NUMBER, 2)]
    stats = site.broker.stats()
    assert (stats["a"].reserve, stats["b"].reserve) == (NUMBER * 2, NUMBER * 2), "claimed once more"
