"""Records: what sources yield."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mongoq.model.arguments import Duration

__all__ = ["Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """What a source yields: a payload to push, and the position behind it, where the source goes on from.

    Payload and position are stored in one transaction, so that a source that was killed goes on behind the last record
    whose payload is in the queue: none is lost, and none comes twice. Values are checked and copied as the record is
    yielded; one that cannot be stored stops the source there.

    Attributes:
        payload: what is pushed.
        position: what the source is called with when it is called next, if this is the last record that was stored: any
            value that BSON holds, of at most 64 KiB; not ``None``, which stands for the beginning.
        priority: from -100 (first) to 100 (last).
        delay: the item is eligible so long after it is pushed, a ``timedelta`` or seconds.
        headers: a document of at most 16 KiB that goes with the item.
    """

    payload: Any
    _: KW_ONLY
    position: Any
    priority: int = 0
    delay: Duration | None = None
    headers: Mapping[str, Any] | None = None
