"""Context managers around handlers on Spark: they are sent to the executors, or named where they cannot be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq


@pytest.mark.prove
def test_hooks_are_entered_in_the_executors(drained: Any, broker: mongoq.Broker, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    pipeline = mongoq.Pipeline("line", errors="line.errors", log_errors="type")

    @pipeline.sink("in", max_retries=0)
    def load(payload: Any) -> str:
        return f"got {payload}"

    @pipeline.around
    @contextlib.contextmanager
    def note(job: Any) -> Iterator[None]:
        yield
        with notes.open("a") as file:
            file.write(f"{job.consumer} {job.item.queue} {job.returned}\n")

    broker.queue("in").push_many([1, 2])
    drained(pipeline)
    assert sorted(notes.read_text().splitlines()) == ["load in got 1", "load in got 2"]
    assert broker.queue("line.errors").size() == 0


def test_a_hook_that_cannot_be_sent_is_named(drained: Any) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    pipeline.sink("in", name="load")(print)
    lock = threading.Lock()

    @pipeline.around
    @contextlib.contextmanager
    def locked(job: Any) -> Iterator[None]:
        with lock:
            yield

    with pytest.raises(mongoq.GraphInvalid, match=r"around 'locked'.*'lock'"):
        drained(pipeline)
