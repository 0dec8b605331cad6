"""Audit: a log record for each change, with its user, its queue and the number of items."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import Request

from mongoq.model.log_fields import log_fields
from mongoq.web.guard import grant_of

logger = logging.getLogger("mongoq.audit")


def record(request: Request, action: str, queue: str, number: int | None = None, **more: Any) -> None:
    """Log a change that was carried out.

    The record has the fields ``mongoq_user``, ``mongoq_action``, ``mongoq_queue`` and ``mongoq_number``.
    """
    user = grant_of(request.scope).user
    amount = "" if number is None else f" ({number:,} items)"
    details = "".join(f", {name} {value!r}" for name, value in more.items() if value is not None)
    extra = {**log_fields(queue=queue), "mongoq_user": user, "mongoq_action": action, "mongoq_number": number}
    logger.info("%r: %s %r%s%s", user, action, queue, amount, details, extra=extra)
