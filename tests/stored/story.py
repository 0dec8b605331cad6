"""The program of the dumps: the pipelines and models that the writer and the tests share.

The caller gives the handlers: those of the writer fail or block where a dump is to hold unfinished work.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

import mongoq

__all__ = [
    "LONG",
    "RETRY",
    "TIMEOUT",
    "WORDS",
    "Order",
    "Size",
    "busy",
    "intake",
    "mailing",
    "meeting",
    "shop",
    "trips",
]

LONG = timedelta(days=365)
"""Retention of history and of ids."""
TIMEOUT = timedelta(days=30)
"""Timeout of the join of ``meeting``."""
RETRY = timedelta(hours=1)
"""Delay of a retry."""
WORDS = ["one", "two", "three", "four", "five", "six"]
"""Payloads that the source ``rows`` of ``intake`` yields."""

Handler = Callable[..., Any]


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Order(BaseModel):
    """A model with fields of types that BSON does not have."""

    id: UUID
    price: Decimal
    due: date
    size: Size
    labels: set[str]


def shop(pack: Handler) -> mongoq.Pipeline:
    """Return a pipeline with a fork, which keeps payloads in trails and buries orders that it cannot split."""
    pipeline = mongoq.Pipeline("shop", errors="shop.errors", outputs="bills", trail="payloads")

    @pipeline.stage("raw", to="checked")
    def check(order: dict[str, Any]) -> dict[str, Any]:
        return {**order, "photo": len(order.get("photo", ""))}

    @pipeline.stage("checked", to=["lines", "bills"], max_retries=0)
    def split(order: dict[str, Any]) -> mongoq.Fork:
        lines = [mongoq.Move("lines", payload={"order": order["order"], "sku": sku}) for sku in order["skus"]]
        return mongoq.Fork([*lines, mongoq.Move("bills", payload={"order": order["order"]}, priority=5)])

    pipeline.sink("lines", name="pack", retry=mongoq.Fixed(RETRY), max_retries=5)(pack)
    return pipeline


def meeting(settle: Handler) -> mongoq.Pipeline:
    """Return a pipeline with a join of two queues that has a timeout."""
    pipeline = mongoq.Pipeline("meeting", errors="meeting.errors", outputs="settled", trail=True)
    join = pipeline.join(
        ["asks", "bids"], on="lot", to="settled", name="settle", timeout=TIMEOUT, retry=mongoq.Fixed(RETRY)
    )
    join(settle)
    return pipeline


def trips() -> mongoq.Pipeline:
    """Return a pipeline with a join of three queues that has no timeout."""
    pipeline = mongoq.Pipeline("trips", errors="trips.errors", outputs="booked")
    on = {"flights": "trip", "hotels": "guest.trip", "cars": "for"}

    @pipeline.join(["flights", "hotels", "cars"], on=on, to="booked")
    def book(flight: Any, hotel: Any, car: Any) -> dict[str, Any]:
        return {"to": flight["to"], "hotel": hotel["name"], "car": car["model"]}

    return pipeline


def intake(rows: Handler | None = None, ticks: Handler | None = None) -> mongoq.Pipeline:
    """Return a pipeline with one or both of its two sources."""
    records = {"words": rows, "ticks": ticks}
    pipeline = mongoq.Pipeline("in/take", outputs=[queue for queue, source in records.items() if source is not None])
    if rows is not None:
        pipeline.source(to="words", name="rows", batch=2)(rows)
    if ticks is not None:
        pipeline.source(to="ticks", name="ticks", batch=1, lease=60)(ticks)
    return pipeline


def mailing(send: Handler) -> mongoq.Pipeline:
    """Return a pipeline whose stage takes each item at most once."""
    pipeline = mongoq.Pipeline("mailing", errors="mailing.errors", outputs="sent")
    pipeline.stage("letters", to="sent", name="send", delivery="at-most-once")(send)
    return pipeline


def busy(work: Handler) -> mongoq.Pipeline:
    """Return a pipeline of one sink."""
    pipeline = mongoq.Pipeline("busy", errors="busy.errors")
    pipeline.sink("jobs", name="work", lease=LONG)(work)
    return pipeline
