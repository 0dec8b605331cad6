"""When the next item of a queue is due."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mongoq.protocol.context import QueueContext
from mongoq.protocol.control import ready
from mongoq.protocol.looks import heads_of
from mongoq.protocol.request import Flow

__all__ = ["next_when"]


def next_when(context: QueueContext[Any]) -> Flow[datetime | None]:
    """Find when the next item is, or was, due: one look into the index for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    yield from ready(context.broker, write=False)
    groups: Any = yield from heads_of(context.name)
    return min((group["when"] for group in groups), default=None)
