"""Calls of a broker, sync or asyncio, from the asyncio code of the app."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import pymongo
from anyio import CapacityLimiter, Lock, to_thread
from pymongo.errors import NetworkTimeout

import mongoq
from mongoq.aio import AsyncBroker, AsyncInspection
from mongoq.errors import ArgumentInvalid
from mongoq.sync import Broker
from mongoq.web.problems import is_away

T = TypeVar("T")
P = ParamSpec("P")
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
        self._uri = broker if isinstance(broker, str) else ""
        self._is_own = isinstance(broker, str)
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
                connect = partial(mongoq.connect, self._uri, timeout=CONNECT_SECONDS, **self._options)
                self._broker = await self._call(partial(self._try, asked, connect))
        return self._broker

    def _try(self, asked: float, call: Callable[[], T]) -> T:
        """Call a function in a thread; one that was asked for before another one has found no server gets its error."""
        if self._failure is not None and self._failure[0] > asked:
            raise self._failure[1]
        try:
            return call()
        except Exception as error:
            if self._broker is None or is_away(error):
                self._failure = (time.monotonic(), error)
            raise

    async def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the broker, or of a queue of it, within ``CHANGE_SECONDS``, and return its result."""
        with _limit(CHANGE_SECONDS):
            return await self._call(partial(method, *args, **options))

    async def _call(self, call: Callable[[], Any]) -> Any:
        if isinstance(self._broker, AsyncBroker):
            return await call()
        if self._limiter is None:
            self._limiter = CapacityLimiter(MAX_THREADS)
        return await to_thread.run_sync(call, limiter=self._limiter)

    async def inspect(
        self, method: Callable[Concatenate[AsyncInspection, P], Awaitable[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Call a method of ``broker.inspect()``, within ``READ_SECONDS``, and return its result."""
        inspection = (await self.open()).inspect()  # a sync one, of a sync broker
        read: T = await self.read(partial(getattr(inspection, method.__name__), *args, **options))
        return read

    async def read(self, method: Callable[..., Any], *args: Any, within: float = READ_SECONDS, **options: Any) -> Any:
        """Call a method that only reads, within some seconds, and return its result.

        When no server answers, reads that have waited for a thread get the error of those before them.
        """
        if isinstance(self._broker, AsyncBroker):
            with _limit(within):
                return await method(*args, **options)

        def read() -> Any:  # the limit begins in the thread: it does not count the wait for one
            with _limit(within):
                return method(*args, **options)

        return await self._call(partial(self._try, time.monotonic(), read))

    async def close(self) -> None:
        """Close the broker if it was made from a connection string."""
        if self._uri and self._broker is not None:
            broker, self._broker = self._broker, None
            await to_thread.run_sync(broker.close)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Limit all commands of a block together, waiting for a server included."""
    try:
        with pymongo.timeout(seconds):
            yield
    except OverflowError as error:
        # PyMongo 4.20 retries until the limit; the pause before the 1,024th retry is too large for a float.
        raise NetworkTimeout(f"no server answered within {seconds:g} s") from error
