"""The way back of what has failed: dead letters that the mended pipeline takes."""

from __future__ import annotations

from bson import ObjectId

import mongoq
from examples.flights.pipeline import ERRORS

__all__ = ["letters_of", "replay_enrich"]

ENRICH = "enrich"


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
