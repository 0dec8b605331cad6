"""A shop: a collection of orders, and a queue of orders to ship."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from bson import ObjectId
from pymongo import MongoClient

import mongoq

__all__ = ["Shop", "Unpaid"]


class Unpaid(Exception):
    """The bank said no."""


class Shop:
    """Orders and the queue share one client, so that they can share a transaction."""

    def __init__(self, uri: str) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        database = self._client.get_default_database("shop")
        self._orders = database["orders"]
        self._broker = mongoq.Broker(database["outbox"], on_close=self._client.close)
        self._outbox = self._broker.queue("to-ship")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.close()

    def order(self, customer: str, quantity: int, *, paid: bool = True) -> ObjectId:
        """Take an order: it and the item that says so are there together, or neither is."""
        id = ObjectId()
        order = {"_id": id, "customer": customer, "quantity": quantity, "state": "ordered"}
        with self._broker.transaction() as tx:
            self._orders.insert_one(order, session=tx.session)
            self._outbox.push({"order": id})
            if not paid:
                raise Unpaid("unpaid")
        return id

    def ship(self, *, broken: bool = False) -> None:
        """Ship one order: it is marked and its item is done together, or neither."""
        with self._outbox.reserved() as item:
            if item is None:
                return
            reserved = item

            def shipped(tx: mongoq.Transaction) -> None:
                change = {"$set": {"state": "shipped"}}
                self._orders.update_one({"_id": reserved.payload["order"]}, change, session=tx.session)
                self._outbox.commit(reserved)
                if broken:
                    raise ConnectionError("no printer")

            self._broker.run_transaction(shipped)

    def __str__(self) -> str:
        orders = [f"{order['customer']} {order['state']}" for order in self._orders.find().sort("_id")]
        return f"orders: {', '.join(orders) or 'none'}; items: {self._outbox.size()}"
