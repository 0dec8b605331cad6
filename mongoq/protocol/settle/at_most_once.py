"""At most once: an item leaves its queue before it is run, and its outputs are pushed afterwards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import new_envelope
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Dead, Failed, Fork, Move, Outcome
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow
from mongoq.protocol.push.insert import insert_item
from mongoq.protocol.settle.bulk import run_bulk
from mongoq.protocol.settle.fork import make_output
from mongoq.protocol.settle.move import ONLY_RUN_REASON, burial_update
from mongoq.protocol.settle.move_many import Moves, Resolve
from mongoq.protocol.settle.settle_many import Batch, make_commit
from mongoq.protocol.settle.trail import Marker
from mongoq.protocol.state.context import QueueContext

__all__ = ["commit_before_run", "push_outputs"]

logger = logging.getLogger("mongoq.worker")

OUTPUT_ID_REMEMBER = timedelta(hours=1)
"""How long the id of a pushed output is remembered after the output is settled: until then it may be pushed again."""

Verdict = tuple[Item[Any], "Outcome | None"]


def commit_before_run(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Flow[Mapping[Any, Exception]]:
    """Settle reserved items before they are run (as ``commit`` does), and return the errors of unsettled items.

    A crash after it has lost the run. An item with an uncertain result must not be run either.
    """
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    tally = yield from run_bulk(context, [(item, make_commit(context, item, batch)) for item in items])
    return tally.failed


def push_outputs(
    context: QueueContext[Any], verdicts: Sequence[Verdict], resolve: Resolve
) -> Flow[Mapping[Any, Exception]]:
    """Push the outputs of items that have left their queue (``insert``), each by its outcome.

    Returns the errors of items without pushed outputs, by ``id_key``. A failed item goes to the dead queue, without
    another run; without a dead queue it is lost, which is logged. Outputs that a crash leaves unpushed are lost as
    well.
    """
    failed: dict[Any, Exception] = {}
    moves = Moves(context, resolve)
    for item, outcome in verdicts:
        try:
            for envelope in _make_envelopes(context, item, outcome, moves):
                envelope |= {"once": context.broker.clock.now() + OUTPUT_ID_REMEMBER, "into": envelope["q"]}
                yield from insert_item(context.broker, envelope, given=True)  # sent again, it finds itself
                when, priority = envelope["when"], envelope["priority"]
                context.broker.record_put(envelope["q"], when, priority, id=envelope["_id"])
                if isinstance(outcome, Failed | Dead):
                    context.count("dead")
        except Exception as error:
            failed[id_key(item.id)] = error
    return failed


def _output_id(item: Item[Any], queue: str, place: int = 0) -> ObjectId:
    """Return the id of an output in a queue: the same when it is pushed again after a lost reply."""
    assert item.token is not None
    digest = sha256(f"{item.id!r}\0{item.token}\0{queue}\0{place}".encode()).digest()
    return ObjectId(item.token.binary[:4] + digest[:8])


def _make_envelopes(
    context: QueueContext[Any], item: Item[Any], outcome: Outcome | None, moves: Moves
) -> list[dict[str, Any]]:
    """Return the envelopes to push."""
    if isinstance(outcome, Failed | Dead):
        grave = _make_dead_letter(context, item, outcome)
        return [] if grave is None else [grave]
    told = outcome.moves if isinstance(outcome, Fork) else [outcome] if isinstance(outcome, Move) else []
    ids = [_output_id(item, getattr(move.to, "name", move.to), place) for place, move in enumerate(told)]
    return [make_output(context, item, move, moves, id=id) for id, move in zip(ids, told, strict=True)]


def _make_dead_letter(context: QueueContext[Any], item: Item[Any], outcome: Failed | Dead) -> dict[str, Any] | None:
    now, dead = context.broker.clock.now(), context.settings.dead
    if dead is None:
        logger.error(
            "item %s of queue %r is lost: its only run has failed, and there is no error queue", item.id, item.queue
        )
        return None
    error, reason = (outcome.error, ONLY_RUN_REASON) if isinstance(outcome, Failed) else (None, outcome.reason)
    marker = Marker(context, "dead", at=now, to=dead)
    update, _ = burial_update(context, item, marker, reason=reason, error=error, attempts=item.attempts, now=now)
    headers = dict(item.headers) or None
    envelope = new_envelope(
        dead,
        item.stored("payload"),
        id=_output_id(item, dead),
        when=now,
        priority=item.priority,
        headers=headers,
        once=None,
    )
    return envelope | {name: update["$set"][name] for name in ("origin", "error") if name in update["$set"]}
