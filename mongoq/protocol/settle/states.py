"""The stored states of items, by which settlements with unclear results are decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.model.envelope import Document
from mongoq.model.item import id_key
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Flow
from mongoq.protocol.state.context import BrokerContext

STATE_FIELDS: dict[str, Any] = dict.fromkeys(
    ("q", "key", "when", "attempts", "token", "settled", "processed", "reserved", "by"), 1
)
"""Projection of the fields that show whether an item was settled."""


def read_states(broker: BrokerContext, ids: Sequence[Any]) -> Flow[dict[Any, Document]]:
    """Read the present states of items (``find``), by ``id_key``; items that are gone are left out."""
    documents = yield from find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE_FIELDS)
    return {id_key(document["_id"]): document for document in documents}
