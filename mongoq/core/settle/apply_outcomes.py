"""Apply the outcomes of handlers: maps each outcome to what is sent. Filters have a map in ``claim.worker_claims``.

At least once, a reserved item is settled by its outcome; each item of a batch on its own, whichever others fail. The
outputs of a fork are written in the transaction that settles it. At most once, an item leaves its queue before it is
run, and its outputs are pushed afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

from bson import ObjectId

from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.push.insert import insert_item
from mongoq.core.push.publish import MAX_TRANSACTION_BYTES
from mongoq.core.sequence.places import record_new
from mongoq.core.settle.move import Moves, Resolve, make_move, new_headers
from mongoq.core.settle.send import settle_all
from mongoq.core.settle.settle import (
    make_burial,
    make_commit,
    make_later,
    make_release,
    make_rollback,
)
from mongoq.core.settle.settlement import Batch, Output, Settlement, Wanted
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import duration
from mongoq.data.envelope import ONLY_RUN_REASON, new_envelope
from mongoq.data.item import Item, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.outcomes import (
    Dead,
    Done,
    Drop,
    Failed,
    Fork,
    Later,
    Move,
    Release,
    ResolvedOutcome,
    SettledElsewhere,
    make_unknown_error,
)
from mongoq.data.push_options import due_time, last_start
from mongoq.data.settings import KEEP
from mongoq.errors import MongoqError, OutcomeInvalid, PayloadTooLarge

logger = logging.getLogger("mongoq.worker")

OUTPUT_ID_REMEMBER = timedelta(hours=1)
"""How long the id of a pushed output is remembered after the output is settled: until then it may be pushed again."""
MAX_OUTPUTS = 10_000
"""Outputs of one item, at most."""

ItemOutcome = tuple[Item[Any], ResolvedOutcome]


# --- at least once -------------------------------------------------------------------------------


async def apply_outcomes(
    context: QueueContext[Any], outcomes: Iterable[ItemOutcome], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Settle items by their outcomes, in as few commands as possible.

    Outcomes that need a transaction come last, many items in each.

    Returns the errors of items that were not settled, by ``id_key``. An impossible outcome, such as a move into a queue
    with an invalid name, leaves its item as it is.

    A crash in between leaves some items settled and the others reserved to the ends of their leases.
    """
    return await apply_outcomes_of_queues([(context, outcomes)], resolve)


async def apply_outcomes_of_queues(
    parts: Iterable[tuple[QueueContext[Any], Iterable[ItemOutcome]]], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Settle items of several queues by their outcomes; items that are settled elsewhere go there together."""
    failed: dict[Any, Exception] = {}
    elsewhere: dict[Any, list[Any]] = {}
    parts = list(parts)
    for context, _ in parts:  # before anything is sent: an error would hide what became of the items
        await ensure_ready(context)
    wanted: list[Wanted] = []
    for context, outcomes in parts:
        batch, moves = Batch(context.broker.clock), Moves(context, resolve)
        for item, outcome in outcomes:
            try:
                if isinstance(outcome, SettledElsewhere):
                    elsewhere.setdefault(outcome.settle, []).append(outcome.entry)
                else:
                    wanted.append((item, _make_settlement(context, item, outcome, batch, moves)))
            except MongoqError as error:
                failed[id_key(item.id)] = error
    failed |= (await settle_all(wanted)).failed
    for settle_entries, entries in elsewhere.items():
        failed |= await settle_entries(entries)
    return failed


def _make_settlement(
    context: QueueContext[Any],
    item: Item[Any],
    outcome: Done | Drop | Move | Fork | Failed | Dead | Release | Later,
    batch: Batch,
    moves: Moves,
) -> Settlement:
    """Return the settlement of an item by its outcome; raises ``MongoqError`` when the outcome is impossible."""
    match outcome:
        case Done() | Drop():
            return make_commit(context, item, batch)
        case Move():
            return make_move(context, item, batch, moves.check(outcome))
        case Fork():
            return _make_fork(context, item, batch, outcome, moves)
        case Failed():
            length, error = duration(outcome.delay, "delay"), outcome.error
            return make_rollback(context, item, batch, length=length, error=error, counted=outcome.counted)
        case Dead():
            return make_burial(context, item, batch, reason=outcome.reason, error=None)
        case Release():
            return make_release(context, item, batch, outcome)
        case Later():
            return make_later(context, item, batch, delay=outcome.delay, when=outcome.when)
        case _:
            raise make_unknown_error(outcome)


def _make_fork(context: QueueContext[Any], item: Item[Any], batch: Batch, fork: Fork, moves: Moves) -> Settlement:
    """Return the settlement by which an item becomes several; they have its trail, and one hop more."""
    number = len(fork.moves)
    if number > MAX_OUTPUTS:
        raise OutcomeInvalid(f"a fork of {number:,} outputs, and {MAX_OUTPUTS:,} is the limit; fork in two steps")
    outputs: list[Output] = []
    for move in fork.moves:
        document = _make_output(context, item, move, moves, id=ObjectId())
        document["hops"] = item.hops + 1
        marks = batch.marks(context, item, "moved", document["q"])
        if trail := marks.trail(item.stored("trail", [])):
            document["trail"] = trail
        outputs.append(Output(document, context.broker.encoding.raw(document), move.sequence))
    size = sum(len(output.raw.raw) for output in outputs)
    if size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(f"outputs of a fork into {number:,}", size, MAX_TRANSACTION_BYTES)
    return replace(make_commit(context, item, batch), outputs=outputs, size=size)


def _make_output(
    context: QueueContext[Any], item: Item[Any], move: Move, moves: Moves, *, id: ObjectId
) -> dict[str, Any]:
    """Return the envelope of a new item, by a move of the old one."""
    checked, clock = moves.check(move), context.broker.clock
    if checked.patch:
        raise OutcomeInvalid("what comes of an item is a new one, and has nothing to patch; give payload=")
    payload = checked.payload
    return new_envelope(
        checked.queue,
        item.stored("payload") if payload is None else context.broker.encoding.unwrap("payload", payload),
        id=id,
        when=due_time(clock, checked.delay, checked.when),
        priority=checked.changes.get("priority", item.priority),
        headers=new_headers(context, item, checked) if move.headers is not KEEP else dict(item.headers) or None,
        once=None,
        start_by=None if checked.expires is None else last_start(clock, checked.expires),
    )


def find_problem(
    context: QueueContext[Any], item: Item[Any], outcome: ResolvedOutcome, moves: Moves, *, gone: bool
) -> MongoqError | None:
    """Return the error of an outcome that cannot be applied, as far as this can be told without the server.

    ``gone``: the item has left its queue before its run.
    """
    try:
        match outcome:
            case Move() | Fork() if gone:
                _make_outputs(context, item, outcome, moves)
            case Move() if outcome.patch is None:  # a patch is checked with the item
                moves.check(outcome)
            case Move() | Fork():
                _make_settlement(context, item, outcome, Batch(context.broker.clock), moves)
    except MongoqError as error:
        return error
    return None


# --- at most once --------------------------------------------------------------------------------


async def commit_before_run(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Mapping[Any, Exception]:
    """Settle reserved items before they are run (as ``commit`` does), and return the errors of unsettled items.

    A crash after it has lost the run. An item with an uncertain result must not be run either.
    """
    await ensure_ready(context)
    batch = Batch(context.broker.clock)
    return (await settle_all([(item, make_commit(context, item, batch)) for item in items])).failed


async def apply_outcomes_at_most_once(
    context: QueueContext[Any], outcomes: Sequence[ItemOutcome], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Push the outputs of items that have left their queue (``insert``), each by its outcome; release the other items.

    Returns the errors of items without pushed outputs, by ``id_key``. A failed item goes to the dead queue, without
    another run; without a dead queue it is lost, which is logged. Outputs that a crash leaves unpushed are lost as
    well.
    """
    released = [(item, outcome) for item, outcome in outcomes if isinstance(outcome, Release)]
    failed: dict[Any, Exception] = {**(await apply_outcomes(context, released, resolve))} if released else {}
    moves = Moves(context, resolve)
    for item, outcome in outcomes:
        try:
            envelopes = _make_outputs(context, item, outcome, moves)  # all are checked before the first one is pushed
            for envelope in envelopes:
                envelope |= {"once": context.broker.clock.now() + OUTPUT_ID_REMEMBER, "into": envelope["q"]}
                await insert_item(context.broker, envelope, id_given=True)  # sent again, it finds itself
                record_new(context.broker, envelope)
            if isinstance(outcome, Failed | Dead) and envelopes:
                context.count("dead")
        except Exception as error:
            failed[id_key(item.id)] = error
    return failed


def _make_outputs(
    context: QueueContext[Any], item: Item[Any], outcome: ResolvedOutcome, moves: Moves
) -> list[dict[str, Any]]:
    """Return what comes of an item that has left its queue."""
    match outcome:
        case Done() | Drop() | Release():
            return []
        case Move():
            outputs: Sequence[Move] = [outcome]
        case Fork():
            outputs = outcome.moves
        case Later():
            # The item has left its queue: a copy of it waits there instead, under an id of its own.
            outputs = [Move(context.name, delay=outcome.delay, when=outcome.when)]
        case Failed():
            return _make_dead_letter(context, item, reason=ONLY_RUN_REASON, error=outcome.error)
        case Dead():
            return _make_dead_letter(context, item, reason=outcome.reason, error=None)
        case SettledElsewhere():
            raise OutcomeInvalid("an item that has left its queue cannot be settled elsewhere")
        case _:
            raise make_unknown_error(outcome)
    if any(output.sequence is not None for output in outputs):
        raise OutcomeInvalid(
            "what is run at most once leaves its place before it runs, so outputs have no order; leave out sequence="
        )
    ids = [_output_id(item, getattr(output.to, "name", output.to), place) for place, output in enumerate(outputs)]
    return [_make_output(context, item, value, moves, id=id) for id, value in zip(ids, outputs, strict=True)]


def _make_dead_letter(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any
) -> list[dict[str, Any]]:
    """Return the dead letter of a failed item; none without a dead queue."""
    batch, dead = Batch(context.broker.clock), context.settings.dead
    if dead is None:
        logger.error(
            "item %s of queue %r is lost: its only run has failed, and there is no error queue",
            *(item.id, item.queue),
            extra=log_fields(item),
        )
        return []
    changes = (make_burial(context, item, batch, reason=reason, error=error).update or {})["$set"]
    envelope = new_envelope(
        dead,
        item.stored("payload"),
        id=_output_id(item, dead),
        when=batch.now,
        priority=item.priority,
        headers=dict(item.headers) or None,
        once=None,
    )
    return [envelope | {name: changes[name] for name in ("origin", "error") if name in changes}]


def _output_id(item: Item[Any], queue: str, place: int = 0) -> ObjectId:
    """Return the id of an output in a queue: the same when it is pushed again after a lost reply."""
    assert item.token is not None
    digest = sha256(f"{item.id!r}\0{item.token}\0{queue}\0{place}".encode()).digest()
    return ObjectId(item.token.binary[:4] + digest[:8])
