"""The line that the crew works on: its queues, the payloads on them, and what is to become of each."""

from __future__ import annotations

import random
from typing import Any, Literal

import mongoq

__all__ = ["FIRST", "HOPELESS", "LEASE", "MAX_RETRIES", "SECOND", "Decision", "backoff", "decide", "new_payload", "open"]

FIRST, SECOND = "in", "out"
LEASE = 1.0
MAX_RETRIES = 5
HISTORY = 24 * 3600.0
HOPELESS = "hopeless"

Decision = Literal["done", "fail", "retry", "dead"]
"""What a run makes of its item: it moves on or is committed, fails, is to be tried again, or is beyond help."""

TROUBLES = {"none": 0.7, "flaky": 0.1, "patient": 0.1, "poison": 0.05, "hopeless": 0.05}


def open(broker: mongoq.Broker) -> None:
    """Store the settings of both queues, so that every member goes by them."""
    for name in (FIRST, SECOND):
        broker.queue(name, lease=LEASE, history=HISTORY, max_retries=MAX_RETRIES).resume()


def new_payload(chance: random.Random, serial: str) -> dict[str, Any]:
    """Return a payload that can be told from all others, wherever it turns up.

    ``hops`` counts the moves, and ``mover`` is the token that moved it.
    """
    trouble = chance.choices(list(TROUBLES), list(TROUBLES.values()))[0]
    where = chance.choice((FIRST, SECOND))
    return {"serial": serial, "trouble": trouble, "where": where, "hops": 0, "mover": None}


def decide(payload: Any, queue: str, attempt: int, chance: random.Random) -> Decision:
    """Decide what a run makes of its item, by the trouble that the item has in one of the queues."""
    match payload["trouble"] if payload["where"] == queue else "none":
        case "flaky" if attempt <= 2:
            return "fail"
        case "patient" if chance.random() < 0.5:
            return "retry"
        case "poison":
            return "fail"
        case "hopeless":
            return "dead"
        case _:
            return "done"


def backoff(attempt: int) -> float:
    """Return the seconds until the next run."""
    return float(min(0.05 * 2**attempt, 1))
