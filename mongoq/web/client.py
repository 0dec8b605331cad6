"""Calls of a broker, sync or asyncio, from the asyncio code of the app."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pymongo
from anyio import CapacityLimiter, Lock, to_thread
from pymongo.errors import NetworkTimeout

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.errors import ArgumentInvalid
from mongoq.sync import Broker
from mongoq.web.problems import is_away

READ_SECONDS = 10.0
"""Seconds that one read may take; after them it is a problem, and the server has stopped it."""
CHANGE_SECONDS = 50.0
"""Seconds that one change may take: a proxy in front gives up after 60 in many places, and would say nothing."""
CONNECT_SECONDS = 5.0
"""Seconds that the search for a server may take."""
MAX_THREADS = 16
"""Calls of a sync broker at the same time."""


class BrokerClient:
    """Calls a broker: an ``AsyncBroker`` on its event loop, a ``Broker`` in threads.

    Args:
        broker: the broker, or a connection string: then the first call connects, and so does each one until a server
            has answered.
        database: database, with a connection string.
        collection: collection, with a connection string.
    """

    def __init__(
        self, broker: Broker | AsyncBroker | str, *, database: str | None = None, collection: str | None = None
    ) -> None:
        if not isinstance(broker, Broker | AsyncBroker | str):
            raise ArgumentInvalid(
                "broker", f"a Broker, an AsyncBroker or a connection string, not {type(broker).__name__}"
            )
        self._uri = broker if isinstance(broker, str) else None
        self._broker = None if isinstance(broker, str) else broker
        places = {"database": database, "collection": collection}
        self._options: dict[str, Any] = {name: value for name, value in places.items() if value is not None}
        if self._options and not isinstance(broker, str):
            raise ArgumentInvalid(next(iter(self._options)), "the broker has its own; give it with a connection string")
        self._connecting = Lock()
        self._failure: tuple[float, Exception] | None = None
        self._limiter: CapacityLimiter | None = None

    async def open(self) -> Any:
        """Return the broker; connect if that has not been done.

        Callers that have waited for an attempt which failed get its error, and do not each try for five seconds.

        Raises:
            ServerUnavailable: no server answered.
        """
        if self._broker is not None:
            return self._broker
        asked = time.monotonic()
        async with self._connecting:
            if self._broker is None:
                if self._failure is not None and self._failure[0] > asked:
                    raise self._failure[1]
                try:
                    self._broker = await to_thread.run_sync(self._connect)
                except Exception as error:
                    self._failure = (time.monotonic(), error)
                    raise
        return self._broker

    def _connect(self) -> Broker:
        assert self._uri is not None
        return mongoq.connect(self._uri, timeout=CONNECT_SECONDS, **self._options)

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the broker, or of a queue of it, within ``CHANGE_SECONDS``, and return its result."""
        with pymongo.timeout(CHANGE_SECONDS):
            try:
                return await self._call(function, *args, **options)
            except OverflowError as error:
                # PyMongo 4.20 retries until the limit; the pause before the 1,024th retry is too large for a float.
                raise NetworkTimeout(f"no server answered within {CHANGE_SECONDS:g} s") from error

    async def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if isinstance(self._broker, AsyncBroker):
            return await function(*args, **options)
        if self._limiter is None:
            self._limiter = CapacityLimiter(MAX_THREADS)
        return await to_thread.run_sync(partial(function, *args, **options), limiter=self._limiter)

    async def read(
        self, flow: Callable[..., Any], *args: Any, handle: Any = None, within: float = READ_SECONDS, **options: Any
    ) -> Any:
        """Run a flow of the broker, or of a queue's ``handle``, within some seconds; return its result.

        When no server answers, reads that have waited for a thread get the error of those before them.
        """
        runner = await self.open() if handle is None else handle
        if isinstance(self._broker, AsyncBroker):
            return await runner._run_within(within, flow, *args, **options)
        run = partial(runner._run_within, within, flow, *args, **options)
        return await self._call(self._run_unless_away, run, time.monotonic())

    def _run_unless_away(self, run: Callable[[], Any], asked: float) -> Any:
        failure = self._failure
        if failure is not None and failure[0] > asked:
            raise failure[1]
        try:
            return run()
        except Exception as error:
            if is_away(error):
                self._failure = (time.monotonic(), error)
            raise

    async def close(self) -> None:
        """Close the broker if it was made from a connection string."""
        if self._uri is not None and self._broker is not None:
            broker, self._broker = self._broker, None
            await to_thread.run_sync(broker.close)
