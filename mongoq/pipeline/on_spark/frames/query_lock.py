"""Lock of a frame stage's queue: one query at a time reads it, in this process and in others.

A query of another process has the consumer's name under a lease. Spark would end a running query of this process when a
second one starts with the same checkpoint, so the second one is not started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mongoq.errors import ConsumerBusy
from mongoq.model.stream_claim import stream_id
from mongoq.protocol.base.find import find_one
from mongoq.spark.clients import broker_at
from mongoq.spark.raw_options import Location

__all__ = ["ended", "in_plain_words", "taken"]

BUSY = f"{ConsumerBusy.__module__}.{ConsumerBusy.__qualname__}"
"""Name of the error in Spark's text when another process has the consumer."""

_taken: dict[tuple[Location, str], Callable[[], bool]] = {}
_lock = threading.Lock()


def taken(place: Location, consumer: str, is_over: Callable[[], bool]) -> None:
    """Register the name in this process; raises ``ConsumerBusy`` while a query of this process has it.

    ``is_over`` returns whether the query has ended by itself.
    """
    with _lock:
        other = _taken.get((place, consumer))
        if other is not None and not other():
            raise _busy(place, consumer)
        _taken[place, consumer] = is_over


def ended(place: Location, consumer: str) -> None:
    """Release the name."""
    with _lock:
        _taken.pop((place, consumer), None)


def in_plain_words(error: BaseException | None, place: Location, consumer: str) -> BaseException | None:
    """Return the error of a query; as ``ConsumerBusy`` if Spark's text names this error."""
    return error if error is None or BUSY not in str(error) else _busy(place, consumer)


def _busy(place: Location, consumer: str) -> ConsumerBusy:
    """Return the error with the owner and the end of the lease, from the control document of the consumer."""
    broker = broker_at(place)
    found = broker._driver.run(find_one(broker._context, {"_id": stream_id(consumer)}, {"by": 1, "until": 1})) or {}
    return ConsumerBusy(consumer, found.get("by"), found.get("until"))
