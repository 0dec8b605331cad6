"""Notes on the claim of a stream: where what was made of its items is, once that is there as a whole.

A note goes with its claim: the next claim has none.
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
    """What is known of a claim.

    Attributes:
        note: its note; ``None`` for none.
        others: those of its ids that are no ObjectIds: other programs made them.
    """

    note: str | None = None
    others: tuple[Any, ...] = ()


def note(broker: BrokerContext, consumer: str, token: ObjectId, text: str) -> Flow[bool]:
    """Put a note on the claim of this token (``update``), and say whether the consumer still has that claim."""
    yield from ensure_broker_ready(broker, write=True)
    update: dict[str, Any] = {"$set": {"claim.note": text}}
    command = Command("update_one", {"filter": _claim(consumer, token), "update": update}, matched, resolved=True)
    found, _ = yield from persisted(command.__iter__)
    return bool(found)


def noted(broker: BrokerContext, consumer: str, token: ObjectId) -> Flow[ClaimNotes]:
    """Return what is known of the claim of this token (``find``); of another claim, or none, nothing."""
    yield from ensure_broker_ready(broker, write=False)
    found = yield from find_one(broker, _claim(consumer, token), {"claim.note": 1, "claim.others": 1})
    if found is None:
        return ClaimNotes()
    return ClaimNotes(found["claim"].get("note"), tuple(found["claim"].get("others", ())))


def _claim(consumer: str, token: ObjectId) -> dict[str, Any]:
    return {"_id": stream_id(consumer), "claim.token": token}
