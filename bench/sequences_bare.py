"""Sequences without mongoq: the same transactions, written by hand with the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from bson import ObjectId
from pymongo import DeleteMany, MongoClient, UpdateMany
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

__all__ = ["BareSequences"]

T = TypeVar("T")

LEASE = timedelta(seconds=60)
ORDER = [("priority", 1), ("when", 1), ("_id", 1)]
NEXT = {"ready_from": 1, "priority": 1, "place": 1}
FIRST = {**NEXT, "when": 1}


class BareSequences:
    """A queue with sequences, for one caller: pushes, claims and commits of documents."""

    def __init__(self, client: MongoClient[Any], collection: Collection[Any], queue: str) -> None:
        self._client, self._collection, self._queue = client, collection, queue

    def push_many(self, payloads: Sequence[Any], sequences: Sequence[str]) -> None:
        """Insert items at the ends of their sequences."""
        numbers = Counter(sequences)

        def attempt(session: ClientSession) -> None:
            ids = [self._control(sequence) for sequence in numbers]
            controls = {
                each["sequence"]: each for each in self._collection.find({"_id": {"$in": ids}}, session=session)
            }
            places, heads, new = {}, {}, []
            known: dict[tuple[int, int], list[str]] = {}
            for sequence, number in numbers.items():
                control = controls.get(sequence, {})
                places[sequence], heads[sequence] = control.get("next", 0), 1 - control.get("open", 0)
                id = self._control(sequence)
                if control:
                    known.setdefault((number, heads[sequence]), []).append(id)
                else:
                    named = {"_id": id, "queue": self._queue, "sequence": sequence}
                    new.append({**named, "next": number, "open": heads[sequence]})
            updates = [
                UpdateMany({"_id": {"$in": alike}}, {"$inc": {"next": number, "open": opened}})
                for (number, opened), alike in known.items()
            ]
            documents, now = [], datetime.now(UTC)
            for payload, sequence in zip(payloads, sequences, strict=True):
                documents.append(self._document(payload, sequence, places[sequence], now, head=heads[sequence] > 0))
                places[sequence] += 1
                heads[sequence] -= 1
            if new:
                self._collection.insert_many(new, session=session)
            if updates:
                self._collection.bulk_write(updates, session=session)
            self._collection.insert_many(documents, session=session)

        self._in_transaction(attempt)

    def _document(self, payload: Any, sequence: str, place: int, now: datetime, *, head: bool) -> dict[str, Any]:
        return {
            "_id": ObjectId(),
            "q": self._queue,
            "payload": payload,
            "priority": 0,
            "attempts": 0,
            "reserved": False,
            "sequence": sequence,
            "place": place,
            "when" if head else "ready_from": now,
        }

    def reserve_many(self, number: int) -> list[dict[str, Any]]:
        """Reserve the first items, as whole documents."""
        now, token = datetime.now(UTC), ObjectId()
        found = list(self._collection.find({"q": self._queue, "when": {"$lte": now}}, sort=ORDER, limit=number))
        ids = [document["_id"] for document in found]
        marks = {"when": now + LEASE, "reserved": True, "token": token, "by": "bench"}
        filter = {"_id": {"$in": ids}, "q": self._queue, "when": {"$lte": now}, "by": {"$exists": False}}
        if ids and self._collection.update_many(filter, {"$set": marks, "$inc": {"attempts": 1}}).modified_count < len(
            ids
        ):
            raise RuntimeError("another caller has claimed an item")
        return [{**document, **marks} for document in found]

    def reserve(self) -> dict[str, Any] | None:
        """Reserve the first item."""
        now = datetime.now(UTC)
        marks = {"when": now + LEASE, "reserved": True, "token": ObjectId(), "by": "bench"}
        filter = {"q": self._queue, "when": {"$lte": now}}
        update = {"$set": marks, "$inc": {"attempts": 1}}
        found = self._collection.find_one_and_update(filter, update, sort=ORDER)
        return found and {**found, **marks}

    def commit_many(self, items: Sequence[Any]) -> None:
        """Delete items, and let the next ones follow."""

        def attempt(session: ClientSession) -> None:
            ids = [item["_id"] for item in items]
            filter = {"_id": {"$in": ids}, "token": items[0]["token"]}
            if self._collection.delete_many(filter, session=session).deleted_count < len(ids):
                raise RuntimeError("an item was lost")
            sequences = [item["sequence"] for item in items]
            pipeline: list[Any] = [
                {"$match": {"q": self._queue, "sequence": {"$in": sequences}, "place": {"$gte": 0}}},
                {"$sort": {"sequence": 1, "place": 1}},
                {"$group": {"_id": "$sequence", "first": {"$first": "$$ROOT"}}},
                {"$project": {f"first.{name}": 1 for name in ("_id", *FIRST)}},
            ]
            found = {
                each["_id"]: each["first"]
                for each in self._collection.aggregate(pipeline, session=session)
                if "when" not in each["first"]
            }
            last = [self._control(sequence) for sequence in sequences if sequence not in found]
            if last:
                list(self._collection.find({"_id": {"$in": last}}, session=session))
            self._collection.bulk_write(self._following(found.values(), last), session=session)

        self._in_transaction(attempt)

    def commit(self, item: Any) -> None:
        """Delete an item, and let the next one follow."""
        now = datetime.now(UTC)
        when = {"$ifNull": ["$when", {"$max": ["$ready_from", now]}]}
        self._settle(item, {"when": when, "ready_from": "$$REMOVE"}, FIRST)

    def commit_and_reserve(self, item: Any) -> dict[str, Any] | None:
        """Delete an item, and reserve the one that follows it."""
        marks = {"when": datetime.now(UTC) + LEASE, "reserved": True, "token": ObjectId(), "by": "bench", "attempts": 1}
        fields = {name: {"$ifNull": [f"${name}", value]} for name, value in marks.items() if name in {"token", "by"}}
        first = self._settle(item, {**marks, **fields, "ready_from": "$$REMOVE"})
        return first and {**first, **marks}

    def _settle(
        self, item: Any, fields: dict[str, Any], projection: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Delete an item, and write fields into the one that follows it, which is returned as it was."""

        def attempt(session: ClientSession) -> dict[str, Any] | None:
            filter = {"_id": item["_id"], "token": item["token"]}
            if not self._collection.delete_one(filter, session=session).deleted_count:
                raise RuntimeError("the item was lost")
            behind = {"q": self._queue, "sequence": item["sequence"], "place": {"$gte": 0}}
            first: dict[str, Any] | None = self._collection.find_one_and_update(
                behind, [{"$set": fields}], projection, sort=[("place", 1)], session=session
            )
            if first is None:
                control = {"_id": self._control(item["sequence"])}
                self._collection.find_one(control, session=session)
                self._collection.delete_one(control, session=session)
            return first

        return self._in_transaction(attempt)

    @staticmethod
    def _following(documents: Iterable[Any], last: list[str]) -> list[UpdateMany | DeleteMany]:
        """Return the statements that let items follow, and that end sequences."""
        now = datetime.now(UTC)
        by_date: dict[datetime, list[Any]] = {}
        for document in documents:
            by_date.setdefault(max(document["ready_from"].replace(tzinfo=UTC), now), []).append(document["_id"])
        statements: list[UpdateMany | DeleteMany] = [
            UpdateMany({"_id": {"$in": ids}}, {"$set": {"when": when}, "$unset": {"ready_from": ""}})
            for when, ids in by_date.items()
        ]
        return [*statements, DeleteMany({"_id": {"$in": last}})] if last else statements

    def _control(self, sequence: str) -> str:
        return f"sequence:{self._queue}:{sequence}"

    def _in_transaction(self, attempt: Callable[[ClientSession], T]) -> T:
        with self._client.start_session() as session:
            return session.with_transaction(attempt)
