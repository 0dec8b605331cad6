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

    async def place(self, customer: str, quantity: int) -> ObjectId:
        """Store an order and push its job: both are there afterwards, or neither is. Returns the id of the order."""
        id = ObjectId()  # not in the transaction, which may run several times

        async def write(tx: mongoq.AsyncTransaction) -> None:
            order = {"_id": id, "customer": customer, "quantity": quantity, "state": "ordered"}
            await self._collection.insert_one(order, session=tx.session)
            await self._jobs.push({"order": id}, session=tx.session)

        await self._broker.run_transaction(write)
        return id

    async def find(self, id: ObjectId) -> dict[str, Any] | None:
        """Return an order, or ``None``."""
        return await self._collection.find_one({"_id": id})

    async def mark_shipped(self, id: ObjectId) -> None:
        """Mark an order as shipped. It may be called again: a job can run twice."""
        await self._collection.update_one({"_id": id}, {"$set": {"state": "shipped"}})
