"""Audit: a log record for each change, with its user, its queue and the number of items."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from mongoq.data.encoding.extended_json import time_text
from mongoq.data.log_fields import log_fields
from mongoq.web.guard import grant_of

logger = logging.getLogger("mongoq.audit")

MAX_SHOWN = 300
"""Characters of one detail of a record, at most."""


def record(request: Request, action: str, queue: str, number: int | None = None, **more: Any) -> None:
    """Log a change that was carried out.

    The record has the fields ``mongoq_user``, ``mongoq_action``, ``mongoq_queue`` and ``mongoq_number``.
    """
    user = grant_of(request.scope).user
    amount = "" if number is None else f" ({number:,} items)"
    details = "".join(f", {name} {value!r:.{MAX_SHOWN}}" for name, value in more.items() if value is not None)
    extra = {**log_fields(queue=queue), "mongoq_user": user, "mongoq_action": action, "mongoq_number": number}
    logger.info("%r: %s %r%s%s", user, action, queue, amount, details, extra=extra)


def show_filter(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what selected the items of a change, as details of ``record``; of a filter on payloads the fields alone.

    Its values are parts of payloads, which no log has.
    """
    where = chosen.get("where")
    ids = chosen.get("ids")
    shown = {name: chosen.get(name) for name in ("state", "stage", "reason", "error")}
    times = {name: time_text(chosen[name]) for name in ("since", "until") if chosen.get(name) is not None}
    return {**shown, **times, "where": where and list(where), "ids": ids and ", ".join(map(str, ids))}
