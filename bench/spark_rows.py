"""Items with payloads of five fields, as the benchmarks of Spark read and write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq import Broker

__all__ = [
    "COLUMNS",
    "FEW",
    "FIELDS",
    "HISTORY",
    "SOURCE",
    "TARGET",
    "WARM",
    "document",
    "fill",
    "fill_history",
    "payload",
]

HISTORY, SOURCE, TARGET, WARM = "bench.history", "bench.source", "bench.target", "bench.warm"
FEW = 2_000
"""Items to warm up with."""
FIELDS = ("customer", "quantity", "price", "at", "country")
COLUMNS = "customer string, quantity int, price double, at timestamp, country string"
BATCH = 10_000
DAY = datetime(2026, 1, 1, tzinfo=UTC)
COUNTRIES = ("de", "fr", "it", "es", "pt", "nl", "be")


def payload(number: int) -> dict[str, Any]:
    return {
        "customer": f"customer {number % 100_000:06}",
        "quantity": number % 97,
        "price": number % 10_007 / 100,
        "at": DAY + timedelta(seconds=number),
        "country": COUNTRIES[number % len(COUNTRIES)],
    }


def document(queue: str, number: int, now: datetime) -> dict[str, Any]:
    """Return an item as a push writes it."""
    head = {"q": queue, "payload": payload(number), "when": now, "priority": 0, "attempts": 0, "reserved": False}
    return {"_id": ObjectId(), **head}


def fill_history(collection: Any, items: int) -> None:
    """Fill the history to read, and a short one for the warm-up."""
    fill(collection, WARM, FEW, processed=True)
    fill(collection, HISTORY, items, processed=True)


def fill(collection: Any, queue: str, items: int, *, processed: bool = False) -> None:
    """Fill a queue, or its history, by the bare driver, with the indexes of mongoq."""
    with Broker(collection) as broker:
        broker.ensure_indexes()
    now = datetime.now(UTC)
    for start in range(0, items, BATCH):
        documents = [document(queue, number, now) for number in range(start, min(items, start + BATCH))]
        if processed:
            documents = [_history_document(each, now) for each in documents]
        collection.insert_many(documents, ordered=False)


def _history_document(item: dict[str, Any], now: datetime) -> dict[str, Any]:
    del item["when"]
    history_fields = {"attempts": 1, "settled": ObjectId(), "processed": now, "expires": now + timedelta(days=7)}
    return {**item, **history_fields}
