"""Settings of the queues of a pipeline: by handles beside it, and by its stages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import Site, every_engine
from tests.pipeline.stations import pass_on

HOUR = timedelta(hours=1)


def ended(site: Site, queue: str) -> list[Any]:
    return [item.payload for item in site.queue(queue).history()]


@every_engine
def test_a_stage_keeps_history_as_a_handle_beside_it_shows(site: Site) -> None:
    clean = site.queue("clean", history=3600)
    pipeline = mongoq.Pipeline("line")
    pipeline.stage("raw", to="clean")(pass_on)
    pipeline.sink("clean")(print)
    site.queue("raw").push_many([1, 2])
    site.drain(pipeline)
    assert clean.settings.history == HOUR
    assert ended(site, "clean") == [1, 2]


@pytest.mark.parametrize("kept", [True, False], ids=["stage", "handle"])
def test_a_stage_stores_the_history_that_its_queues_have_not(site: Site, kept: bool) -> None:
    options: dict[str, Any] = {} if kept else {"history": None}
    site.queue("clean", **options).push(1)
    site.queue("other").push(2)
    pipeline = mongoq.Pipeline("line")
    pipeline.sink(["clean", "other"], history=HOUR)(print)
    site.drain(pipeline)
    assert (ended(site, "clean"), ended(site, "other")) == ([1] if kept else [], [2])
    with site.connect() as elsewhere:  # which knows nothing of the stage
        queue = elsewhere.queue("other")
        queue.push(3)
        queue.commit(queue.reserve())
        assert [item.payload for item in queue.history()] == [2, 3]


def test_a_recipe_and_a_join_keep_history(site: Site) -> None:
    recipe = {
        "name": "line",
        "stages": [
            {"name": "pair", "from": ["left", "right"], "handler": "builtins:print", "join": {"on": None}},
            {"name": "end", "from": "raw", "handler": "tests.pipeline.stations:pass_on"},
        ],
    }
    for stage in recipe["stages"]:
        stage["history"] = 3600
    for queue in ("left", "right", "raw"):
        site.queue(queue).push(queue)
    pipeline = mongoq.Pipeline.from_recipe(recipe)
    site.drain(pipeline)
    queues = ("left", "right", "line.pair.joined", "raw")
    assert [ended(site, queue) for queue in queues] == [["left"], ["right"], [["left", "right"]], ["raw"]]


def test_a_history_that_is_no_duration_is_a_fault() -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.sink("clean", history="long")(print)
    with pytest.raises(mongoq.GraphInvalid, match="history: "):
        pipeline.check()
