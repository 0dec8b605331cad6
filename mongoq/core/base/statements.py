"""Statements: updates and deletions that are sent in order, many in one bulk, and the number of documents they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.core.command import Command
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext

Statement = tuple[str, dict[str, Any]]
"""The driver's name of a statement, and its arguments."""
METHODS = {
    "DeleteMany": "delete_many",
    "DeleteOne": "delete_one",
    "UpdateMany": "update_many",
    "UpdateOne": "update_one",
}
MAX_STATEMENTS = 1_000
"""Statements of one bulk, at most."""


async def send_statements(broker: BrokerContext, requests: Sequence[Statement]) -> int:
    """Send statements in order, in bulks where there is a server, and return the number of documents found."""
    number = 0
    if broker.serverless:
        for kind, arguments in requests:
            reply: Any = await perform(Command(METHODS[kind], arguments))
            number += reply.deleted_count if kind.startswith("Delete") else reply.matched_count
        return number
    for start in range(0, len(requests), MAX_STATEMENTS):
        bulk = requests[start : start + MAX_STATEMENTS]
        number += await perform(Command("bulk_write", {"requests": bulk, "ordered": True}, number_found))
    return number


def number_found(reply: Any) -> int:
    """Return the number of documents that a bulk has found."""
    return int(reply.matched_count + reply.deleted_count)
