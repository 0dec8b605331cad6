"""Shop: what a process has open, be it the app, the worker or both."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from pymongo import AsyncMongoClient

import mongoq
from examples.shop.carrier import Carrier
from examples.shop.orders import Orders
from examples.shop.settings import Settings

__all__ = ["Shop"]


class Shop:
    """One client for orders and queues, and the connections to the carrier. Nothing is sent before the first call."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(settings.uri, tz_aware=True)
        database = (
            self._client.get_default_database("mongoq")
            if settings.database is None
            else self._client[settings.database]
        )
        # To close the broker closes all: that is what `mongoq worker` does with a worker that it is given.
        self.broker = mongoq.AsyncBroker(database[settings.collection], on_close=self._close)
        self.carrier = Carrier(settings.carrier)
        self.orders = Orders(database["orders"], self.broker)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.broker.close()

    async def _close(self) -> None:
        await self.carrier.close()
        await self._client.close()
