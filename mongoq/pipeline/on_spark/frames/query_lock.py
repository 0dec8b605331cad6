"""One query at a time reads a queue for a frame stage: another one of this process, or of others, is told as such.

The query of another process has the name of the consumer, under a lease. One of this process would be ended by Spark
when a second one starts with its checkpoint, so that one is not started.
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
"""As which Spark's text names the error of the process that reads."""

_taken: dict[tuple[Location, str], Callable[[], bool]] = {}
_lock = threading.Lock()


def taken(place: Location, consumer: str, is_over: Callable[[], bool]) -> None:
    """Take the name in this process; raises ``ConsumerBusy`` while it has a query of that name.

    ``is_over`` says whether the query has ended by itself.
    """
    with _lock:
        other = _taken.get((place, consumer))
        if other is not None and not other():
            raise _busy(place, consumer)
        _taken[place, consumer] = is_over


def ended(place: Location, consumer: str) -> None:
    """Give the name back."""
    with _lock:
        _taken.pop((place, consumer), None)


def in_plain_words(error: BaseException | None, place: Location, consumer: str) -> BaseException | None:
    """Return the error of a query, as ``ConsumerBusy`` where Spark's text says so."""
    return error if error is None or BUSY not in str(error) else _busy(place, consumer)


def _busy(place: Location, consumer: str) -> ConsumerBusy:
    """Return the error with what the control document of the consumer says of who has the name."""
    broker = broker_at(place)
    found = broker._driver.run(find_one(broker._context, {"_id": stream_id(consumer)}, {"by": 1, "until": 1})) or {}
    return ConsumerBusy(consumer, found.get("by"), found.get("until"))
