# Generated from mongoq/core/base/statements.py by scripts/unasync.py. Do not edit.
"""Statements: updates and deletions that are sent in order, many in one bulk, and the number of documents they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.core.base.statements import MAX_STATEMENTS, METHODS, Statement, number_found
from mongoq.core.command import Command
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.perform import perform


def send_statements(broker: BrokerContext, requests: Sequence[Statement]) -> int:
    """Send statements in order, in bulks where there is a server, and return the number of documents found."""
    number = 0
    if broker.serverless:
        for kind, arguments in requests:
            reply: Any = perform(Command(METHODS[kind], arguments))
            number += reply.deleted_count if kind.startswith("Delete") else reply.matched_count
        return number
    for start in range(0, len(requests), MAX_STATEMENTS):
        bulk = requests[start : start + MAX_STATEMENTS]
        number += perform(Command("bulk_write", {"requests": bulk, "ordered": True}, number_found))
    return number
