"""Items as rows of tables: what ``peek``, ``show`` and ``history`` print."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mongoq.cli.base.output import printable
from mongoq.model.encoding.extended_json import json_text
from mongoq.model.item import Item
from mongoq.model.item_document import claim_time, state_of

PAYLOAD_CHARACTERS = 200
"""Characters of a payload in a table, at most."""


def item_row(item: Item[Any]) -> dict[str, Any]:
    """Return an item as a row of a table, its payload in one shortened line."""
    return {
        "id": item.id,
        "state": state_of(item),
        "due": _time(item.stored("when")),
        "start_by": _time(item.stored("start_by")),
        "by": item.stored("by"),
        "since": claim_time(item),
        "lease_until": _time(item.stored("when")),
        "processed": _time(item.stored("processed")),
        "priority": item.stored("priority"),
        "attempts": item.stored("attempts"),
        "key": item.stored("key"),
        "sequence": item.stored("sequence"),
        "ready_from": _time(item.stored("ready_from")),
        "payload": one_line(item.stored("payload")),
    }


def one_line(value: Any) -> str:
    """Return a value as JSON in one line, shortened."""
    text = printable(json_text(value), keep="")
    return text if len(text) <= PAYLOAD_CHARACTERS else text[: PAYLOAD_CHARACTERS - 1] + "…"


def _time(value: Any) -> Any:
    return value if isinstance(value, datetime) else None
