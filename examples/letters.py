"""Dead letters: which stage has given up how many items, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import mongoq

__all__ = ["Cause", "causes"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why items are dead.

    Attributes:
        stage: the stage that has given them up.
        reason: why.
        error: what its handler raised the last time; ``""`` where it has declared them dead.
    """

    stage: str
    reason: str
    error: str


def causes(broker: mongoq.Broker, errors: str) -> Counter[Cause]:
    """Count the dead letters in a queue of errors."""
    return Counter(_cause(item) for item in broker.queue(errors).history(state=None))


def _cause(item: mongoq.Item[object]) -> Cause:
    origin, error = item.origin, item.error
    message = f"{error.type}: {error.message}" if error else ""
    return Cause(origin.stage or "", origin.reason, message) if origin else Cause("", "", message)
