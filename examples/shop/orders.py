"""Orders: a collection, and a queue with a job for each order that has to be shipped."""

from __future__ import annotations

from typing import Any

from bson import ObjectId
from pymongo.asynchronous.collection import AsyncCollection

import mongoq

__all__ = ["QUEUE", "Orders"]

QUEUE = "to-ship"


class Orders:
    """Orders and their jobs. The collection and the broker share one client, so that they can share a transaction."""

    def __init__(self, collection: AsyncCollection[dict[str, Any]], broker: mongoq.AsyncBroker) -> None:
        self._collection = collection
        self._broker = broker
        self._jobs = broker.queue(QUEUE)

    async def place(self, customer: str, quantity: int, *, id: ObjectId | None = None) -> ObjectId:
        """Store an order and push its job: both are there afterwards, or neither is. Returns the id of the order.

        The same id twice is one order, so that a customer without an answer can send it again.
        """
        own = id or ObjectId()  # not in the transaction, which may run several times
        order = {"customer": customer, "quantity": quantity, "state": "ordered"}

        async def write(tx: mongoq.AsyncTransaction) -> None:
            # An upsert: a duplicate key would be an error of the server, which aborts the transaction.
            stored = await self._collection.update_one(
                {"_id": own}, {"$setOnInsert": order}, upsert=True, session=tx.session
            )
            if stored.upserted_id is not None:
                await self._jobs.push({"order": own}, session=tx.session)

        await self._broker.run_transaction(write)
        return own

    async def find(self, id: ObjectId) -> dict[str, Any] | None:
        """Return an order, or ``None``."""
        return await self._collection.find_one({"_id": id})

    async def mark_shipped(self, id: ObjectId) -> None:
        """Mark an order as shipped. It may be called again: a job can run twice."""
        await self._collection.update_one({"_id": id}, {"$set": {"state": "shipped"}})
