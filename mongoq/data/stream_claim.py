"""The claim of a stream: the items of one batch, as the control document of its consumer stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.data.arguments import text
from mongoq.errors import ArgumentInvalid

STREAM_PREFIX = "stream:"
"""Prefix of the ``_id`` of a consumer's control document."""
NAME_BYTES = 120
"""Bytes of a consumer's name, at most."""
ID_BYTES = 12
"""Bytes of an ObjectId."""
MAX_STREAM_CLAIM_ITEMS = 500_000
"""Items of one claim, at most: their ids are 6 MB of a document, which may have 16 MB."""

ENTRY_TIME = {"$cond": [{"$eq": ["$attempts", 0]}, {"$max": ["$pushed", "$when"]}, {"$ifNull": ["$pushed", "$when"]}]}
"""The result of ``entry_time``, as an expression for the server."""


def entry_time(document: Mapping[str, Any]) -> Any:
    """Return the time at which a free item came to its queue, as a stream's claim notes it in ``pushed``.

    A push or a move leaves its time in ``when``, and no attempts. A claim that was given back leaves no attempts
    either, but an earlier ``when``, and its own note. A rollback, or a lease that ended, leaves attempts: without a
    note, the earliest known time is ``when``, from which the item was eligible again.
    """
    pushed: Any = document.get("pushed")
    when: Any = document["when"]
    # There is no note, or a date that Python cannot hold, which has a type of its own.
    if type(pushed) is not type(when):
        return when
    return pushed if document.get("attempts") else max(pushed, when)


def consumer_name(value: Any) -> str:
    """Return the name of a stream's consumer: not empty, at most 120 bytes, without NUL."""
    name = text(value, "consumer", NAME_BYTES, whole=True)
    if not name.strip() or "\0" in name:
        raise ArgumentInvalid("consumer", "a name that is not empty and holds no NUL")
    return name


def stream_id(consumer: str) -> str:
    """Return the ``_id`` of the control document of a stream's consumer."""
    return STREAM_PREFIX + consumer


def pack(ids: Iterable[Any]) -> tuple[bytes, list[Any]]:
    """Return the ObjectIds among ids in 12 bytes each, and the other ids, which other programs made."""
    listed = list(ids)
    packed = b"".join(id.binary for id in listed if type(id) is ObjectId)
    return packed, [id for id in listed if type(id) is not ObjectId]


def unpack(packed: bytes, other_ids: Sequence[Any]) -> list[Any]:
    """Return the ids that ``pack`` received: ObjectIds in their order, then the others."""
    ids: list[Any] = [ObjectId(packed[start : start + ID_BYTES]) for start in range(0, len(packed), ID_BYTES)]
    return [*ids, *other_ids]


@dataclass(frozen=True, slots=True)
class StreamClaim:
    """The items of one batch.

    Attributes:
        number: number of the claim, counted for its consumer; the offset by which Spark knows the end of the batch.
        token: fence of all these items.
        until: end of the lease of the claim; it may have been extended since.
        due: time from which the first of them was eligible; they return to it when they are given back.
        ids: ids in the order of claims; ``None`` while the items are being reserved: no caller has seen the claim yet.
        remembers: True when some of the ids are remembered after their items are settled.
        in_order: True when some of the items have places in sequences, so that the next ones follow them.
    """

    number: int
    token: ObjectId
    until: datetime
    due: datetime
    ids: Sequence[Any] | None = None
    remembers: bool = False
    in_order: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> StreamClaim:
        """Return a claim from its stored form."""
        ids = unpack(document["ids"], document["others"]) if "ids" in document else None
        return cls(
            *(document["number"], document["token"], document["until"], document["due"]),
            ids=ids,
            remembers=document.get("once", False),
            in_order=document.get("in_order", False),
        )

    def document(self) -> dict[str, Any]:
        """Return the stored form."""
        document: dict[str, Any] = {"number": self.number, "token": self.token, "until": self.until, "due": self.due}
        if self.ids is None:
            return document
        packed, unpacked = pack(self.ids)
        order = {"in_order": True} if self.in_order else {}
        return {**document, "ids": packed, "others": unpacked, "once": self.remembers, **order}
