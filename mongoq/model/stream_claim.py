"""The claim of a stream: the items of one batch, as the control document of its consumer remembers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import text

__all__ = ["ENTRY", "MOST", "StreamClaim", "consumer_name", "entry_time", "pack", "stream_id", "unpack"]

STREAM_PREFIX = "stream:"
NAME_BYTES = 120
ID_BYTES = 12
MOST = 500_000
"""Items of one claim: their ids are 6 MB of a document, which may have 16 MB."""

ENTRY = {"$cond": [{"$eq": ["$attempts", 0]}, {"$max": ["$pushed", "$when"]}, {"$ifNull": ["$pushed", "$when"]}]}
"""What ``entry_time`` returns, as the server reckons it."""


def entry_time(document: Mapping[str, Any]) -> Any:
    """Return when an item that nobody holds came to its queue, as a stream's claim notes it in ``pushed``.

    A push or a move leaves its time in ``when``, and no attempts. A claim that was given back leaves no attempts
    either, but an earlier ``when``, and what it had noted itself. A rollback, or a lease that ended, leaves attempts:
    without a note nothing earlier is known than ``when``, from which the item was eligible again.
    """
    pushed: Any = document.get("pushed")
    when: Any = document["when"]
    if type(pushed) is not type(when):  # there is none; dates that Python cannot hold have a type of their own
        return when
    return pushed if document.get("attempts") else max(pushed, when)


def consumer_name(value: Any, argument: str = "consumer") -> str:
    """Return the name of a stream's consumer: not empty, at most 120 bytes, without NUL."""
    name = text(value, argument, NAME_BYTES)
    if not name.strip() or "\0" in name:
        raise ArgumentInvalid(argument, "a name that is not empty and holds no NUL")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid(argument, "a name cannot hold lone surrogates") from None
    return name


def stream_id(consumer: str) -> str:
    """Return the ``_id`` of the control document of a stream's consumer."""
    return STREAM_PREFIX + consumer


def pack(ids: Iterable[Any]) -> tuple[bytes, list[Any]]:
    """Return the ObjectIds among ids in 12 bytes each, and the others, which some other program made."""
    packed, others = [], []
    for id in ids:
        if type(id) is ObjectId:
            packed.append(id.binary)
        else:
            others.append(id)
    return b"".join(packed), others


def unpack(packed: bytes, others: Sequence[Any]) -> list[Any]:
    """Return the ids that ``pack`` was given: ObjectIds in their order, then the others."""
    ids: list[Any] = [ObjectId(packed[start : start + ID_BYTES]) for start in range(0, len(packed), ID_BYTES)]
    return [*ids, *others]


@dataclass(frozen=True, slots=True)
class StreamClaim:
    """The items of one batch.

    Attributes:
        number: counts the claims of a consumer; the offset that Spark knows the end of the batch by.
        token: the fence of all these items.
        until: when the lease ended that they were claimed with; it has been extended since.
        due: from when the first of them was eligible, where they go when they are given back.
        ids: in the order of claims; ``None`` while they are being reserved: nobody was told of this claim yet.
        remembers: the ids of some are remembered after they are settled.
    """

    number: int
    token: ObjectId
    until: datetime
    due: datetime
    ids: Sequence[Any] | None = None
    remembers: bool = False

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> StreamClaim:
        """Return a claim as it is stored."""
        ids = unpack(stored["ids"], stored["others"]) if "ids" in stored else None
        return cls(stored["number"], stored["token"], stored["until"], stored["due"], ids, stored.get("once", False))

    def document(self) -> dict[str, Any]:
        """Return what is stored."""
        stored: dict[str, Any] = {"number": self.number, "token": self.token, "until": self.until, "due": self.due}
        if self.ids is None:
            return stored
        packed, others = pack(self.ids)
        return {**stored, "ids": packed, "others": others, "once": self.remembers}
