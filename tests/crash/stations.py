"""The line that the processes work on: its queues, the payloads on them, and what is to become of each."""

from __future__ import annotations

import random
from typing import Any, Literal

import mongoq

__all__ = [
    "FIRST",
    "HOPELESS",
    "LEASE",
    "MAX_RETRIES",
    "SECOND",
    "Decision",
    "decide",
    "new_payload",
    "outcome",
    "prepare",
]

FIRST, SECOND = "in", "out"
LEASE = 1.0
MAX_RETRIES = 5
HISTORY = 24 * 3600.0
HOPELESS = "hopeless"

Decision = Literal["done", "fail", "retry", "dead"]
"""What a run makes of its item: it moves on or is committed, fails, is to be tried again, or is beyond help."""

TROUBLES = {"none": 0.7, "flaky": 0.1, "patient": 0.1, "poison": 0.05, "hopeless": 0.05}


def prepare(broker: mongoq.Broker) -> None:
    """Store the settings of both queues, so that every process goes by them."""
    for name in (FIRST, SECOND):
        broker.queue(name, lease=LEASE, history=HISTORY, max_retries=MAX_RETRIES).resume()


def new_payload(chance: random.Random, serial: str) -> dict[str, Any]:
    """Return a payload that differs from all others, wherever it turns up.

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


def outcome(decision: Decision, item: mongoq.Item[Any]) -> mongoq.Outcome | None:
    """Return what a handler returns, or raise what it raises.

    What is stored of it names the token of this run: in the payload that moves on, in the error, in the reason.
    """
    match decision:
        case "done" if item.queue == FIRST:
            patch: dict[str, Any] = {"$inc": {"hops": 1}, "$set": {"mover": item.token}}
            return mongoq.Move(SECOND, patch=patch, delay=0.2 if item.payload["trouble"] == "patient" else None)
        case "done":
            return None
        case "fail":
            raise RuntimeError(f"failed in run {item.token}")
        case "retry":
            return mongoq.Retry(delay=0.2)
        case "dead":
            return mongoq.Dead(f"{HOPELESS} in run {item.token}")
