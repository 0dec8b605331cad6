"""Records: the values that sources yield."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mongoq.model.arguments import Duration

__all__ = ["Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """A value that a source yields: a payload to push, and the position after it, from which the source goes on.

    Payload and position are stored in one transaction. So a source that was killed goes on after the last record with
    its payload in the queue: none is lost, and none comes twice. Values are checked and copied when the record is
    yielded; a record that cannot be stored stops the source there.

    Attributes:
        payload: payload to push.
        position: argument of the source's next call, if this is the last record that was stored: any value that BSON
            holds, of at most 64 KiB; not ``None``, which stands for the beginning.
        priority: from -100 (first) to 100 (last).
        delay: time after the push until the item is eligible, a ``timedelta`` or seconds.
        headers: a document of at most 16 KiB that goes with the item.
    """

    payload: Any
    _: KW_ONLY
    position: Any
    priority: int = 0
    delay: Duration | None = None
    headers: Mapping[str, Any] | None = None
