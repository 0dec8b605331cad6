"""Pushes into sequences: each item takes the place at the end of its sequence, in the transaction that inserts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.envelope import is_same_push
from mongoq.model.sequence import topic_problem
from mongoq.protocol.base.queue_settings import ensure_ready, mark_ordered
from mongoq.protocol.command import Command
from mongoq.protocol.perform import perform
from mongoq.protocol.push.insert import find_pushed, id_taken_error
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.enter import enter, record_new, with_place
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import QueueContext

Ordered = tuple[Mapping[str, Any], "str | None"]
"""The envelope of an item, and its sequence if it has one."""


async def push_in_order(context: QueueContext[Any], pushes: Sequence[Ordered], *, id_given: bool, joined: bool) -> None:
    """Insert items at the ends of their sequences, all of them or none, in the order given.

    In one transaction, a caller's if there is one (``joined``): the control documents of the sequences are read and
    written (``find``, ``update``), and the items inserted. A crash before its commit leaves nothing.

    Raises:
        ArgumentInvalid: the queue is a topic with bound queues.
        TransactionsUnavailable: the server is no replica set.
        DuplicateItem: a push to another queue has used one of the ids.
    """
    if context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    await ensure_ready(context, fresh=not joined)
    await mark_ordered(context, joined=joined)

    async def insert_new() -> tuple[list[Mapping[str, Any]], list[Promoted]]:
        """Insert the items that are not stored yet; return them, and older items promoted."""
        envelopes = {envelope["_id"]: envelope for envelope, _ in pushes}
        for document in (await find_pushed(context.broker, list(envelopes))) if id_given else ():
            envelope = envelopes.pop(document["_id"])
            if not is_same_push(document, context.name):
                raise id_taken_error(document, envelope)
        new = [(envelope, sequence) for envelope, sequence in pushes if envelope["_id"] in envelopes]
        entries = await enter(context, Counter(sequence for _, sequence in new if sequence is not None))
        documents = [
            envelope if sequence is None else with_place(envelope, entries[sequence]) for envelope, sequence in new
        ]
        if len(documents) == 1:
            await perform(Command[Any]("insert_one", {"document": documents[0]}))
        elif documents:
            await perform(Command[Any]("insert_many", {"documents": documents, "ordered": True}))
        return documents, [item for entry in entries.values() for item in entry.promoted]

    documents, promoted = await run_atomic(context.broker, insert_new, joined=joined)
    for document in documents:
        record_new(context.broker, document)
    record_promoted(context.broker, promoted)
