"""Notes on the claim of a stream: the place of its finished output, written once the output is complete.

A note is part of its claim: the next claim has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bson import ObjectId

from mongoq.model.stream_claim import stream_id
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.flow.commands import Command, Flow, matched, persisted
from mongoq.protocol.state.context import BrokerContext

__all__ = ["ClaimNotes", "note", "noted"]


@dataclass(frozen=True, slots=True)
class ClaimNotes:
    """Notes that are stored with a claim.

    Attributes:
        note: text of the note; ``None`` without one.
        others: ids of the claim that are not ObjectIds: other programs made them.
    """

    note: str | None = None
    others: tuple[Any, ...] = ()


def note(broker: BrokerContext, consumer: str, token: ObjectId, text: str) -> Flow[bool]:
    """Write a note on the claim with this token (``update``), and return whether the consumer still has that claim."""
    yield from ensure_broker_ready(broker, write=True)
    update: dict[str, Any] = {"$set": {"claim.note": text}}
    command = Command("update_one", {"filter": _claim(consumer, token), "update": update}, matched, resolved=True)
    found, _ = yield from persisted(command.__iter__)
    return bool(found)


def noted(broker: BrokerContext, consumer: str, token: ObjectId) -> Flow[ClaimNotes]:
    """Read the notes of the claim with this token (``find``); empty when the consumer has another claim or none."""
    yield from ensure_broker_ready(broker, write=False)
    found = yield from find_one(broker, _claim(consumer, token), {"claim.note": 1, "claim.others": 1})
    if found is None:
        return ClaimNotes()
    return ClaimNotes(found["claim"].get("note"), tuple(found["claim"].get("others", ())))


def _claim(consumer: str, token: ObjectId) -> dict[str, Any]:
    return {"_id": stream_id(consumer), "claim.token": token}
