"""Streaming queries that tests start by Spark's own calls."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["start_query"]

MAX_RESTARTS = 20
SLOW_START = "Python worker failed to connect back"
"""What Spark says when the Python of a source has not started within 10 s."""


def start_query(writer: Any) -> Any:
    """Start a query and return it once its source is there, or has failed.

    Spark waits 10 s for the Python of a source, which a busy machine exceeds; such a query has read nothing, and is
    started again.
    """
    for _ in range(MAX_RESTARTS):
        query = writer.start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.02)
        if query.isActive or SLOW_START not in str(query.exception()):
            break
    return query
