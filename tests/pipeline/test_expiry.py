"""Items that no stage started in time, on every engine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import mongoq
from tests.pipeline.conftest import Site

PAST = datetime(2000, 1, 1, tzinfo=UTC)


def test_a_stage_does_not_run_expired_items(site: Site) -> None:
    """They go to the error queue of the stage, which is its dead queue."""
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.stage("raw", to="out")
    def work(payload: Any) -> Any:
        return payload

    raw = site.queue("raw")
    raw.configure(on_expired="dead")
    raw.push_many(range(6), expires=[PAST, None, 3600, PAST, 3600, None])
    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [1, 2, 4, 5]
    assert sorted(site.letters("graph.errors")) == [(0, "expired"), (3, "expired")]
    assert {item.start_by for item in site.queue("out").peek(9)} == {None}


def test_an_item_that_a_filter_moves_on_keeps_its_time(site: Site) -> None:
    """It was not handed out: in its next queue it still must start in time."""
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs=["out", "rest"])

    @pipeline.stage("raw", to=["out", "rest"], where={"kind": "a"}, otherwise=mongoq.Move("rest"))
    def work(payload: Any) -> Any:
        return mongoq.Move("out")

    site.queue("raw").push_many([{"kind": "a"}, {"kind": "b"}, {"kind": "b"}], expires=3600)
    site.drain(pipeline)
    assert [item.start_by is None for item in site.queue("out").peek(9)] == [True]
    assert site.queue("rest").size() == 2
