"""Copies: items of a history as a replay pushes them again, each under an id that is always the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

import bson
from bson import DatetimeMS, ObjectId

from mongoq.model.codec import codec_options
from mongoq.model.envelope import new_envelope, origin_document
from mongoq.model.item import Document, Item

__all__ = ["COPY_MARK", "Line", "copy_envelope", "copy_id"]

COPY_MARK = "replayed"
"""The field of a copy that names the queue whose history it was copied from; it survives moves and burials."""
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANY_ID = codec_options()
"""Other programs may have used anything for an id."""


def copy_id(original: Document, to: str, label: str, hop: str | None = None) -> ObjectId:
    """Return the id of the copy: always the same for one run of one item, a queue, a label, and a hop if one is told.

    It begins with when the original was processed (milliseconds, of the last 49 days) and the end of the original's
    counter, so that copies sort as their originals did, most of the time; the rest is a hash of all there is to tell.
    """
    id = original["_id"]
    raw = id.binary if isinstance(id, ObjectId) else bson.encode({"": id}, codec_options=ANY_ID)
    milliseconds = _milliseconds(original["processed"])
    run = str(milliseconds) if hop is None else f"{milliseconds} {hop}"
    parts = (raw.hex(), run, to, label)
    digest = sha256("\0".join(parts).encode(errors="surrogatepass")).digest()
    return ObjectId((milliseconds % 2**32).to_bytes(4) + raw[-2:] + digest[:6])


def _milliseconds(date: Any) -> int:
    if type(date) is datetime and date.tzinfo is UTC:
        return (date - EPOCH) // MILLISECOND
    return int(DatetimeMS(date))  # which takes longer


def copy_envelope(
    original: Item[Any],
    payload: Any,
    *,
    queue: str,
    id: ObjectId,
    when: datetime,
    priority: int,
    once: datetime,
    label: str,
    at: datetime,
) -> dict[str, Any]:
    """Return the envelope of a copy: fresh but for payload, priority and headers, and it says where it comes from.

    The key is not live again, since a newer item may have it by now.
    """
    envelope = new_envelope(
        queue, payload, id=id, when=when, priority=priority, headers=original.headers or None, once=once
    )
    reason = f"replayed: {label}" if label else "replayed"
    envelope["origin"] = origin_document(original, reason=reason, attempts=original.attempts, at=at)
    envelope[COPY_MARK] = original.queue
    return envelope


class Line:
    """Where copies stand in the order of claims: as their originals did, whatever their ids are.

    Claims go by ``(priority, when, _id)``. Copies share their ``when`` as long as their ids ascend, and it goes on by
    a millisecond where they do not.
    """

    def __init__(self) -> None:
        self._last: tuple[datetime, ObjectId] | None = None

    def places(self, ids: Sequence[ObjectId], end: datetime) -> list[datetime]:
        """Return a ``when`` for each of the next copies, ending at ``end`` unless earlier ones stand there."""
        if not ids:
            return []
        keys = [id.binary for id in ids]
        steps = list(accumulate((int(key <= before) for before, key in pairwise(keys)), initial=0))
        start = end - steps[-1] * MILLISECOND
        if self._last is not None:
            when, id = self._last
            start = max(start, when + MILLISECOND * int(ids[0] <= id))
        places = [start + step * MILLISECOND for step in steps]
        self._last = places[-1], ids[-1]
        return places
