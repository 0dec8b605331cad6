# Generated from mongoq/aio/reserved.py by scripts/unasync.py. Do not edit.
"""``reserved()``: an item for the length of a block."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from mongoq.errors import ReservationLost
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.protocol.claim import OnInvalid

if TYPE_CHECKING:
    from mongoq.sync.queue import Queue

__all__ = ["Reserved"]

M = TypeVar("M")
logger = logging.getLogger("mongoq.reserved")


class Reserved(Generic[M]):
    """The block of ``queue.reserved()``; made by that method."""

    def __init__(
        self, queue: Queue[M], lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._wait = wait
        self._on_invalid: OnInvalid = on_invalid
        self._item: Item[M] | None = None

    def __enter__(self) -> Item[M] | None:
        """Reserve an item, or return ``None`` when none came in time."""
        self._item = self._queue.reserve(lease=self._lease, wait=self._wait, on_invalid=self._on_invalid)
        if self._item is not None:
            self._queue._open_tokens.add(self._item.token)
        return self._item

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; or roll back with the error; or release, when the block was cancelled or interrupted."""
        item = self._item
        if item is None or item.token not in self._queue._open_tokens:
            return
        self._queue._open_tokens.discard(item.token)
        if error is None:
            self._queue.commit(item)
            return
        try:
            self._queue._hand_back(item, error)
        except ReservationLost as lost:
            logger.warning("after %r: %s", error, lost)
