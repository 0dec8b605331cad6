"""A pipeline at work, by either engine, until nothing is left for it; what the examples have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import mongoq
from examples.eventloop import RunOnLoop, started_on_loop

__all__ = ["Engine", "Line", "Run", "Site", "nothing_in"]

GRACE = 5.0
"""Seconds that a handler may go on for when the line is left."""
LOOK = 0.1
"""Seconds between two looks whether everything is drained."""

Engine = Literal["threads", "asyncio"]
"""What runs the stages."""
Run = mongoq.Run | RunOnLoop


@dataclass(frozen=True, slots=True)
class Site:
    """Where the pipeline works, and how.

    Attributes:
        broker: of its queues.
        uri: of the broker's server.
        engine: what runs the stages.
    """

    broker: mongoq.Broker
    uri: str
    engine: Engine = "threads"

    def start(self, pipeline: mongoq.Pipeline) -> AbstractContextManager[Run]:
        """Set a pipeline to work for the length of a block."""
        if self.engine == "asyncio":
            return started_on_loop(pipeline, self.uri, self.broker.namespace, grace=GRACE)
        return pipeline.start(self.broker, grace=GRACE)


class Line(ABC):
    """A run of a pipeline, and what brings items in meanwhile."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    @abstractmethod
    def loaded(self) -> int:
        """How many rows were loaded."""

    @abstractmethod
    def is_drained(self) -> bool:
        """Say whether nothing is left to do; raises what ended the loading."""

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end, and say whether it is reached; raises what ended the loading or the run."""
        deadline = time.monotonic() + seconds
        while not (self._run.ended or self.is_drained()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(LOOK, left))
        self._run.stop()
        return self._run.wait()

    def progress(self) -> mongoq.Progress:
        """Return how far the stages have come."""
        return self._run.progress()


def nothing_in(broker: mongoq.Broker, queues: Iterable[str]) -> bool:
    """Say whether queues are drained. Looked at in the order in which items meet them, no queue fills up again."""
    return all(broker.queue(name).next_when() is None for name in queues)
