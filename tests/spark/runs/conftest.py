"""Pipelines at work on Spark, in a collection of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mongoq

PATIENCE = 120


@pytest.fixture
def broker(store: Any) -> Iterator[mongoq.Broker]:
    with mongoq.Broker(store.collection) as broker:
        yield broker


@pytest.fixture
def start(spark: Any, store: Any) -> Callable[..., Any]:
    """Start a pipeline on Spark; by default it ends when nothing is left."""

    def start(pipeline: mongoq.Pipeline, **options: Any) -> Any:
        place = {"database": store.collection.database.name, "collection": store.collection.name}
        return pipeline.run_on_spark(spark, store.uri, **{**place, "available_now": True, **options})

    return start


@pytest.fixture
def drained(start: Any) -> Callable[..., mongoq.Progress]:
    def drained(pipeline: mongoq.Pipeline, **options: Any) -> mongoq.Progress:
        with start(pipeline, **options) as run:
            assert run.wait(PATIENCE)
        assert run.ended
        progress: mongoq.Progress = run.progress()
        return progress

    return drained
