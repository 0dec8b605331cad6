"""The two shells: mongoq's and the driver's side, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from pymongo.monitoring import CommandListener

from bench.measure import Caller, LoopCaller, ThreadCaller
from mongoq import AsyncBroker, Broker
from mongoq.data.encoding.codec import codec_options

__all__ = ["SHELLS", "Shell", "bare_collection"]


@dataclass(frozen=True, slots=True)
class Shell:
    """One shell, ready to call.

    Attributes:
        broker: makes mongoq's broker of a collection; it is closed with the shell.
        caller: times calls.
        client: makes a client of the driver, with listeners to its commands; it is closed with the shell.
    """

    broker: Callable[[Any], Any]
    caller: Caller
    client: Callable[..., Any]


def bare_collection(client: Any, database: str, name: str) -> Any:
    """Return the collection for bare loops, with the codec options and the write concern of mongoq."""
    return client[database].get_collection(
        name, codec_options=codec_options(), write_concern=WriteConcern(w="majority")
    )


@contextmanager
def threads(uri: str) -> Iterator[Shell]:
    with ExitStack() as opened:

        def client(*listeners: CommandListener) -> Any:
            client: MongoClient[Any] = MongoClient(uri, event_listeners=listeners)
            return opened.enter_context(client)

        def broker(collection: Any) -> Broker:
            return opened.enter_context(Broker(collection))

        yield Shell(broker, ThreadCaller(), client)


@contextmanager
def loop(uri: str) -> Iterator[Shell]:
    with asyncio.Runner() as runner, ExitStack() as opened:

        def client(*listeners: CommandListener) -> Any:
            client: AsyncMongoClient[Any] = AsyncMongoClient(uri, event_listeners=listeners)
            opened.callback(lambda: runner.run(client.close()))
            return client

        def broker(collection: Any) -> AsyncBroker:
            broker = AsyncBroker(collection)
            opened.callback(lambda: runner.run(broker.close()))
            return broker

        yield Shell(broker, LoopCaller(runner), client)


SHELLS = {"sync": threads, "asyncio": loop}
