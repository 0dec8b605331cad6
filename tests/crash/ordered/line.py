"""The queue that a campaign on sequences works on, and what becomes of its items."""

from __future__ import annotations

import random
from typing import Any

import mongoq

__all__ = [
    "DEAD", "LEASE", "MAX_BACKLOG", "QUEUE", "SEQUENCES", "choose_expiry", "decide", "new_payload", "prepare",
]  # fmt: skip

QUEUE = "orders"
DEAD = f"{QUEUE}.dead"
SEQUENCES = [f"customer-{number}" for number in range(500)]
LEASE = 4.0
"""Seconds; a handler takes far less, so that only a killed or starved process loses an item."""
MAX_RETRIES = 3
MAX_BACKLOG = 600
"""Items that wait before no more are pushed."""
EXPIRIES = (0.01, 0.3, 2.0, 60.0)
"""Seconds within which some items must be started."""
TROUBLES = {"none": 0.86, "flaky": 0.1, "curable": 0.02, "poison": 0.02}
"""Which items fail: in the first run, in all runs before a replay, or always."""


def prepare(broker: mongoq.Broker, *, holds: bool) -> None:
    """Store the settings of the queue, so that every process goes by them."""
    chosen: dict[str, Any] = {"on_dead": "hold"} if holds else {}
    queue = broker.queue(QUEUE, lease=LEASE, max_retries=MAX_RETRIES, on_expired="dead", **chosen)
    queue.resume()


def new_payload(chance: random.Random, serial: str) -> dict[str, Any]:
    """Return a payload that differs from all others."""
    return {"serial": serial, "trouble": chance.choices(list(TROUBLES), list(TROUBLES.values()))[0]}


def choose_expiry(chance: random.Random) -> float | None:
    """Return how long an item may wait for its start, in seconds; most wait as long as it takes."""
    return chance.choice(EXPIRIES) if chance.random() < 0.15 else None


def decide(item: mongoq.Item[Any]) -> str:
    """Return what a run makes of its item: ``done`` or ``fail``."""
    is_failing = {"flaky": item.attempts == 1, "curable": item.origin is None, "poison": True, "none": False}
    return "fail" if is_failing[item.payload["trouble"]] else "done"
