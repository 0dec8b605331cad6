"""Group commit on asyncio: while a command is under way, callers gather; then one command goes for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from mongoq.core.command import MAX_SHARED, Shared, copies
from mongoq.errors import BrokerClosed

if TYPE_CHECKING:
    from mongoq.drivers.performer_aio import AioPerformer

logger = logging.getLogger("mongoq.drive")


class AioGroupCommit:
    """Sends the shared commands of tasks.

    There is no timer. A task of the driver sends for the callers of one operation until none is left: the task of a
    caller would take the command with it when it is cancelled. A cancelled caller leaves at once, and an item that
    arrives for it is given back.
    """

    def __init__(self, performer: AioPerformer, run: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._performer = performer
        self._run = run
        self._waiting: dict[Hashable, list[Shared[Any]]] = {}

    def share(self, shared: Shared[Any]) -> asyncio.Future[Any]:
        """Add a caller to the next command, and return the future of its part.

        The caller awaits the future itself: a shared request costs neither a task nor another coroutine.
        """
        self._performer.check_open()
        assert self._performer.loop is not None
        waiter: asyncio.Future[Any] = self._performer.loop.create_future()
        shared.waiter = waiter
        waiting = self._waiting.get(shared.key)
        if waiting is None:
            waiting = self._waiting[shared.key] = []
            # A context of its own: a caller's timeouts are not the others'.
            task = self._performer.start_task(self._send_all(shared.key, waiting), Context())
            task.add_done_callback(partial(self._fail, shared.key, waiting))
        waiting.append(shared)
        return waiter

    async def _send_all(self, key: Hashable, waiting: list[Shared[Any]]) -> None:
        """Send what callers share until none waits; a caller stays in the list until it has its answer."""
        while waiting:
            batch = [shared for shared in waiting[:MAX_SHARED] if not shared.waiter.done()]
            number = min(len(waiting), MAX_SHARED)
            if batch:
                try:
                    answers = await self._run(batch[0].send, [shared.entry for shared in batch])
                except Exception as error:
                    answers = copies(error, len(batch))
                undoing = [self._answer(shared, answer) for shared, answer in zip(batch, answers, strict=True)]
                for task in filter(None, undoing):
                    await asyncio.wait([task])  # the next callers find the items that it gives back
            del waiting[:number]
            if len(batch) == 1:
                await asyncio.sleep(0)  # a lone caller who goes on at once has come back by then
        del self._waiting[key]

    def _answer(self, shared: Shared[Any], answer: Any) -> asyncio.Task[None] | None:
        """Answer a caller, or return the task that gives back what came for a cancelled one."""
        waiter: asyncio.Future[Any] = shared.waiter
        if waiter.done():
            return self._give_back(shared, answer)
        if isinstance(answer, Exception):
            waiter.set_exception(answer)
        else:
            waiter.set_result(answer)
        return None

    def _fail(self, key: Hashable, waiting: list[Shared[Any]], _: asyncio.Task[None]) -> None:
        """Fail the callers who are left; only where the task was cancelled, at the end of the driver or the loop."""
        if self._waiting.get(key) is waiting:
            del self._waiting[key]
        for shared in waiting:
            if not (shared.waiter.done() or shared.waiter.get_loop().is_closed()):
                shared.waiter.set_exception(BrokerClosed())

    def leave(self, shared: Shared[Any]) -> None:
        """Let a caller go that was cancelled; what came for it in that very moment is given back."""
        waiter: asyncio.Future[Any] = shared.waiter
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._give_back(shared, waiter.result())

    def _give_back(self, shared: Shared[Any], answer: Any) -> asyncio.Task[None] | None:
        """Start to give back the item that came for a cancelled caller."""
        if isinstance(answer, Exception):
            logger.debug("a command whose caller was cancelled failed: %r", answer)
        elif shared.undo is not None and answer is not None:
            return self._performer.undo_all([(shared, answer)])
        return None
