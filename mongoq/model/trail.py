"""The trail of an item: entries that the stages of pipelines have written on it, one for each hop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import text
from mongoq.model.encoding.codec import SIZE_LIMIT, Encoding

STAGE_BYTES = 120
"""Bytes of a stage's name, at most."""
MAX_HOPS = 50
"""Entries of a trail, at most; the oldest ones are removed first."""
MAX_LONG_HOPS = 20
"""Entries of a trail with long names, at most."""
LONG_ENTRY_BYTES = 240
"""Bytes from which an entry is long; its trail has at most ``MAX_LONG_HOPS``, so that it fits beside any payload."""
MAX_KEPT_PAYLOAD_BYTES = 64 * 1024
"""Bytes of a payload that is kept in an entry, as BSON, at most."""
LARGE_PAYLOAD_BYTES = 12 * 1024 * 1024
"""Bytes of a payload above which the item has no room for the payloads of its trail."""
HOP_COUNT_LIMIT = 2**31
"""Limit of a number of hops that the server can add to."""


@dataclass(frozen=True, slots=True)
class StageMark:
    """The mark of a stage on the handles that it works with: settlements through them record the stage.

    Attributes:
        name: name of the stage, at most 120 bytes.
        trail: True when each settlement is recorded on the item.
        payloads: True when the record includes the payload as it was before.
    """

    name: str
    trail: bool = False
    payloads: bool = False

    def __post_init__(self) -> None:
        text(self.name, "name", STAGE_BYTES)

    @property
    def keeps(self) -> bool:
        """True when payloads are kept in the trail."""
        return self.trail and self.payloads


@dataclass(frozen=True, slots=True)
class Hop:
    """One entry of an item's trail: a stage of a pipeline has settled it.

    Attributes:
        queue: queue that held it.
        stage: name of the stage.
        by: worker (``host:pid:random``).
        taken: time of the claim, on the server's clock, as ``settled`` is.
        settled: time at which the settlement was sent.
        attempts: reservations in that queue until then.
        ended: ``"moved"``, ``"done"`` or ``"dead"``.
        to: queue that it went to; ``None`` when it was done.
        payload: payload as it was stored before, if it was ``kept``; else ``None``.
        kept: True when the pipeline keeps payloads in the trail, and there was room for this one.
        large: True when the pipeline keeps payloads, but this one took more than 64 KiB or was removed later to make
            room.
        joined: True when the entry is of an item that has been joined with others since.
    """

    queue: str
    stage: str
    by: str | None
    taken: datetime
    settled: datetime
    attempts: int
    ended: str
    to: str | None
    payload: Any = None
    kept: bool = False
    large: bool = False
    joined: bool = False


_TYPES = {"queue": str, "stage": str, "taken": datetime, "settled": datetime, "attempts": int, "ended": str}
"""Required fields of an entry, with their types."""


def trail_of(trail: Any) -> tuple[Hop, ...]:
    """Return the hops in the field ``trail`` of an envelope, oldest first; ignore entries of other programs."""
    if not isinstance(trail, list):
        return ()
    return tuple(
        Hop(
            **{name: entry[name] for name in _TYPES},
            by=entry.get("by"),
            to=entry.get("to"),
            payload=entry.get("payload"),
            kept="payload" in entry,
            large=entry.get("large") is True,
            joined=entry.get("joined") is True,
        )
        for entry in trail
        if isinstance(entry, Mapping) and all(isinstance(entry.get(name), kind) for name, kind in _TYPES.items())
    )


def payload_at(trail: Any, queue: str) -> Any:
    """Return the payload that an item had when it last left a queue; raises ``ArgumentInvalid`` where none was kept."""
    # The latest hop: an item may have gone round a loop.
    hop = next((hop for hop in reversed(trail_of(trail)) if hop.queue == queue), None)
    if hop is None:
        raise ArgumentInvalid("hop", f"its trail does not lead through queue {queue!r}")
    if hop.joined:
        raise ArgumentInvalid("hop", f"it was joined with others behind {queue!r}; those would be lost")
    if not hop.kept:
        raise ArgumentInvalid("hop", f"its payload there was {'too large to be' if hop.large else 'not'} kept")
    return hop.payload


def is_countable(hops: Any) -> bool:
    """Return whether the server can add to a number of hops; other programs may have written anything."""
    return isinstance(hops, int) and not isinstance(hops, bool) and 0 <= hops < HOP_COUNT_LIMIT


def hops_counted(number: Any) -> int:
    """Return the field ``hops`` of an envelope; 0 if it is not a number that the server can add to."""
    return int(number) if is_countable(number) else 0


def most_hops(entry: bytes) -> int:
    """Return the number of entries that a trail keeps if it ends in this entry, still without its payload."""
    return MAX_HOPS if len(entry) <= LONG_ENTRY_BYTES else MAX_LONG_HOPS


def without_payloads(trail: list[Any]) -> list[Any]:
    """Return a trail without payloads, with ``large`` in their places."""
    return [
        {**{name: value for name, value in entry.items() if name != "payload"}, "large": True}
        if isinstance(entry, Mapping) and "payload" in entry
        else entry
        for entry in trail
    ]


@dataclass(frozen=True, slots=True)
class ClaimedPayload:
    """A payload as it was claimed; later changes by a handler do not affect it.

    Attributes:
        size: bytes of ``{"payload": payload}``.
        wrapped: those bytes, if they are few enough for a trail; else ``None``.
    """

    size: int
    wrapped: bytes | None


def keep_payload(payload: Any, encoding: Encoding) -> ClaimedPayload:
    """Encode a payload for a trail; a value decoded by the caller's own codec may fail to encode again."""
    try:
        raw = bytes(encoding.raw({"payload": payload}).raw)
    except Exception:
        # A caller's own codec may raise anything.
        return ClaimedPayload(SIZE_LIMIT, None)
    return ClaimedPayload(len(raw), raw if len(raw) <= MAX_KEPT_PAYLOAD_BYTES else None)
