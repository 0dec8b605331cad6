"""The dead letters of the pipeline: which stage has given up which flights, and why; and the way back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bson import ObjectId

import mongoq
from examples.flights.pipeline import ERRORS

__all__ = ["Cause", "causes", "letters_of", "replay_enrich"]

ENRICH = "enrich"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why flights are dead.

    Attributes:
        stage: the stage that has given them up.
        reason: why.
        error: what its handler raised the last time; ``""`` where it has declared them dead.
    """

    stage: str
    reason: str
    error: str


def causes(broker: mongoq.Broker) -> Counter[Cause]:
    """Count the dead letters."""
    return Counter(_cause(item) for item in broker.queue(ERRORS).history(state=None))


def _cause(item: mongoq.Item[object]) -> Cause:
    origin, error = item.origin, item.error
    told = f"{error.type}: {error.message}" if error else ""
    return Cause(origin.stage or "", origin.reason, told) if origin else Cause("", "", told)


def letters_of(broker: mongoq.Broker, stage: str) -> list[ObjectId]:
    """Return the ids of the dead letters of a stage."""
    letters = broker.queue(ERRORS).history(state=None)
    return [item.id for item in letters if item.origin is not None and item.origin.stage == stage]


def replay_enrich(broker: mongoq.Broker) -> list[ObjectId]:
    """Send the dead letters of ``enrich`` back to the queue that they died in, with all they had, and return their ids.

    Each goes in one update: an interruption leaves the rest where they are, for the next run.
    """
    ids = letters_of(broker, ENRICH)
    broker.dead_queue(ERRORS).replay(ids=ids)
    return ids
