"""A replay by Spark: read a history, pick, and write copies, each once."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, ObjectId

SCHEMA = "_id string, _payload binary, country string, total decimal(10,2)"


@pytest.fixture
def originals(store: Any) -> list[dict[str, Any]]:
    """Processed an hour ago and now, in two countries."""
    payloads = []
    for place in range(40):
        total = Decimal128(Decimal(place * 10) / 1)
        payload = {"country": "NL" if place % 2 else "DE", "total": total, "customer": ObjectId(), "at": store.now}
        payloads.append(payload)
        ago = timedelta(hours=1 if place < 30 else 0)
        store.add(payload, when=None, processed=store.now - ago, key=f"k{place}")
    return payloads


def _replayed(spark: Any, store: Any, label: str, **options: Any) -> None:
    until = (store.now - timedelta(minutes=30)).isoformat()
    reader = spark.read.format("mongoq").options(**store.options(view="history", until=until)).schema(SCHEMA)
    picked = reader.load().where("country = 'NL' AND total > 100").select("_id", "_payload")
    writer = picked.write.format("mongoq").options(**store.options(queue=None, idColumn="_id", label=label, **options))
    writer.mode("append").save()


def test_what_is_picked_of_a_history_is_pushed_once_and_to_the_last_byte(
    spark: Any, store: Any, originals: list[dict[str, Any]]
) -> None:
    wanted = [each for each in originals[:30] if each["country"] == "NL" and each["total"].to_decimal() > 100]
    for _ in range(2):
        _replayed(spark, store, "one", to="orders")
        copies = list(store.collection.find({"q": "orders", "when": {"$exists": True}}))
        assert sorted((copy["payload"] for copy in copies), key=str) == sorted(wanted, key=str)
        assert {(copy.get("key"), copy["attempts"]) for copy in copies} == {(None, 0)}
    store.collection.update_many({"when": {"$exists": True}}, {"$unset": {"when": "", "payload": ""}})  # done
    _replayed(spark, store, "one", to="orders")
    assert store.collection.count_documents({"q": "orders", "when": {"$exists": True}}) == 0
    _replayed(spark, store, "two", to="orders")
    assert store.collection.count_documents({"q": "orders", "when": {"$exists": True}}) == len(wanted)
