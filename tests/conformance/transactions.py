"""Transactions of any shell, and what the caller writes in them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tests.shells import Shell

__all__ = ["Failed", "note", "noted", "own_session", "run_transaction", "settled", "transaction"]


class Failed(Exception):
    """What the caller's own code raises."""


@asynccontextmanager
async def transaction(shell: Shell) -> AsyncIterator[Any]:
    """A transaction of any shell."""
    block = shell.broker.transaction()
    if inspect.isawaitable(block):
        with await block as tx:
            yield tx
    else:
        async with block as tx:
            yield tx


async def run_transaction(shell: Shell, function: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    if shell.kind in ("aio", "motor"):
        return await shell.broker.run_transaction(function)
    return await shell.broker.run_transaction(lambda tx: finished(function(tx)))


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing, as those of the synchronous shell."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def settled(reply: Any) -> Any:
    return await reply if isinstance(reply, Awaitable) else reply


async def note(shell: Shell, tx: Any, **document: Any) -> None:
    """Write into the caller's own collection."""
    own = tx.session.client[shell.raw.database.name]["own"]
    await settled(own.insert_one(document, session=tx.session))


def noted(shell: Shell) -> int:
    return int(shell.raw.database["own"].count_documents({}))


@asynccontextmanager
async def own_session(shell: Shell, *, begun: bool = True) -> AsyncIterator[Any]:
    """A session that the caller has started, with a transaction in it."""
    async with transaction(shell) as tx:
        client = tx.session.client
    session = await settled(client.start_session())
    if begun:
        await settled(session.start_transaction())
    try:
        yield session
        if begun:
            await settled(session.commit_transaction())
    finally:
        await settled(session.end_session())
