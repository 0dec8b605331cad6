"""Worker: ships orders. ``mongoq worker examples.shop.worker:worker`` runs it in a process of its own."""

from __future__ import annotations

from typing import Any, Protocol

from bson import ObjectId

import mongoq
from examples.shop.carrier import Carrier
from examples.shop.orders import QUEUE, Orders
from examples.shop.settings import Settings
from examples.shop.shop import Shop

__all__ = ["make_worker", "register", "worker"]

CONCURRENCY = 4


class Job(Protocol):
    """What the handler reads of a job; the virtual worker of a test has it too."""

    @property
    def delivery_hash(self) -> str:
        """Key that is the same in each attempt."""


def register(worker: Any, orders: Orders, carrier: Carrier) -> None:
    """Register the handler with a worker: with a real one, or with a virtual one in a test."""

    async def ship(payload: dict[str, ObjectId], job: Job) -> mongoq.Dead | None:
        order = await orders.find(payload["order"])
        if order is None:
            return mongoq.Dead("no such order")
        if order["state"] != "shipped":
            await carrier.send(str(order["_id"]), job.delivery_hash)
            await orders.mark_shipped(order["_id"])
        return None

    worker.consumer(QUEUE, concurrency=CONCURRENCY, max_retries=8)(ship)


def make_worker(shop: Shop) -> mongoq.AsyncWorker:
    """Return the worker of a shop."""
    worker = mongoq.AsyncWorker(shop.broker, grace=shop.settings.grace)
    register(worker, shop.orders, shop.carrier)
    return worker


async def worker() -> mongoq.AsyncWorker:
    """Return a worker with a shop of its own, which the command ``mongoq worker`` runs and closes."""
    return make_worker(Shop(Settings.from_environment()))
