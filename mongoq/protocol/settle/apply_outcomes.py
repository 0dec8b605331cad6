"""Apply the outcomes of handlers: maps each outcome to what is sent. Filters have their own map (``claim.filtering``).

At least once, a reserved item is settled by its outcome; each item of a batch on its own, whichever others fail. At
most once, an item leaves its queue before it is run, and its outputs are pushed afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from bson import ObjectId

from mongoq.errors import MongoqError, OutcomeInvalid
from mongoq.model.arguments import duration
from mongoq.model.envelope import new_envelope
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import (
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
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.push.insert import insert_item
from mongoq.protocol.sequence.enter import record_new
from mongoq.protocol.settle.bulk import run_bulk
from mongoq.protocol.settle.bury import ONLY_RUN_REASON, burial_update, make_burial
from mongoq.protocol.settle.fork import check_fork, fork_items, make_output
from mongoq.protocol.settle.move import Moves, Resolve, make_move
from mongoq.protocol.settle.settle import make_commit, make_later, make_release, make_rollback
from mongoq.protocol.settle.settlement import Batch, Settlement, Wanted
from mongoq.protocol.state.context import QueueContext

logger = logging.getLogger("mongoq.worker")

OUTPUT_ID_REMEMBER = timedelta(hours=1)
"""How long the id of a pushed output is remembered after the output is settled: until then it may be pushed again."""

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
    for context, outcomes in parts:
        batch, moves = Batch(context.broker.clock), Moves(context, resolve)
        settlements: list[Wanted] = []
        forks: list[tuple[Item[Any], Fork]] = []
        for item, outcome in outcomes:
            try:
                match outcome:
                    case Fork():
                        forks.append((item, outcome))
                    case SettledElsewhere():
                        elsewhere.setdefault(outcome.settle, []).append(outcome.entry)
                    case _:
                        settlements.append((item, _make_settlement(context, item, outcome, batch, moves)))
            except MongoqError as error:
                failed[id_key(item.id)] = error
        failed |= (await run_bulk(context, settlements)).failed
        failed |= await fork_items(context, forks, batch, moves)
    for settle_entries, entries in elsewhere.items():
        failed |= await settle_entries(entries)
    return failed


def _make_settlement(
    context: QueueContext[Any],
    item: Item[Any],
    outcome: Done | Drop | Move | Failed | Dead | Release | Later,
    batch: Batch,
    moves: Moves,
) -> Settlement:
    """Return the settlement of an item by its outcome; raises ``MongoqError`` when the outcome is impossible."""
    match outcome:
        case Done() | Drop():
            return make_commit(context, item, batch)
        case Move():
            return make_move(context, item, batch, moves.check(outcome))
        case Failed():
            length, error = duration(outcome.delay, "delay"), outcome.error
            return make_rollback(context, item, batch, length=length, error=error, counted=outcome.counted)
        case Dead():
            return make_burial(context, item, batch, reason=outcome.reason, error=None)
        case Release():
            return make_release(context, item, batch, outcome)
        case Later():
            return make_later(context, item, batch, when=batch.due(outcome.delay, outcome.when))
        case _:
            raise make_unknown_error(outcome)


def find_problem(
    context: QueueContext[Any], item: Item[Any], outcome: ResolvedOutcome, moves: Moves, *, gone: bool
) -> MongoqError | None:
    """Return the error of an outcome that cannot be applied, as far as this can be told without the server.

    ``gone``: the item has left its queue before its run.
    """
    try:
        match outcome:
            case Move() | Fork() if gone:
                _make_outputs(context, item, [outcome] if isinstance(outcome, Move) else outcome.moves, moves)
            case Move():
                checked = moves.check(outcome)
                if outcome.patch is not None:  # it is checked with the item
                    make_move(context, item, Batch(context.broker.clock), checked)
            case Fork():
                check_fork(context, item, outcome, Batch(context.broker.clock), moves)
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
    tally = await run_bulk(context, [(item, make_commit(context, item, batch)) for item in items])
    return tally.failed


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
            await _push_by_outcome(context, item, outcome, moves)
        except Exception as error:
            failed[id_key(item.id)] = error
    return failed


async def _push_by_outcome(context: QueueContext[Any], item: Item[Any], outcome: ResolvedOutcome, moves: Moves) -> None:
    """Push what comes of an item that has left its queue; all outputs are checked before the first one is pushed."""
    match outcome:
        case Done() | Drop() | Release():
            return
        case Move():
            outputs = _make_outputs(context, item, [outcome], moves)
        case Fork():
            outputs = _make_outputs(context, item, outcome.moves, moves)
        case Later():
            # The item has left its queue: a copy of it waits there instead, under an id of its own.
            again = Move(context.name, delay=outcome.delay, when=outcome.when)
            outputs = _make_outputs(context, item, [again], moves)
        case Failed():
            outputs = _make_dead_letter(context, item, reason=ONLY_RUN_REASON, error=outcome.error)
        case Dead():
            outputs = _make_dead_letter(context, item, reason=outcome.reason, error=None)
        case SettledElsewhere():
            raise OutcomeInvalid("an item that has left its queue cannot be settled elsewhere")
        case _:
            raise make_unknown_error(outcome)
    for envelope in outputs:
        envelope |= {"once": context.broker.clock.now() + OUTPUT_ID_REMEMBER, "into": envelope["q"]}
        await insert_item(context.broker, envelope, id_given=True)  # sent again, it finds itself
        record_new(context.broker, envelope)
    if isinstance(outcome, Failed | Dead) and outputs:
        context.count("dead")


def _make_outputs(
    context: QueueContext[Any], item: Item[Any], outputs: Sequence[Move], moves: Moves
) -> list[dict[str, Any]]:
    ids = [_output_id(item, getattr(output.to, "name", output.to), place) for place, output in enumerate(outputs)]
    if any(output.sequence is not None for output in outputs):
        raise OutcomeInvalid(
            "what is run at most once leaves its place before it runs, so outputs have no order; leave out sequence="
        )
    return [make_output(context, item, value, moves, id=id) for id, value in zip(ids, outputs, strict=True)]


def _make_dead_letter(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any
) -> list[dict[str, Any]]:
    """Return the dead letter of a failed item; none without a dead queue."""
    now, dead = context.broker.clock.now(), context.settings.dead
    if dead is None:
        logger.error(
            "item %s of queue %r is lost: its only run has failed, and there is no error queue",
            *(item.id, item.queue),
            extra=log_fields(item),
        )
        return []
    update, _ = burial_update(context, item, reason=reason, error=error, attempts=item.attempts, now=now)
    envelope = new_envelope(
        dead,
        item.stored("payload"),
        id=_output_id(item, dead),
        when=now,
        priority=item.priority,
        headers=dict(item.headers) or None,
        once=None,
    )
    return [envelope | {name: update["$set"][name] for name in ("origin", "error") if name in update["$set"]}]


def _output_id(item: Item[Any], queue: str, place: int = 0) -> ObjectId:
    """Return the id of an output in a queue: the same when it is pushed again after a lost reply."""
    assert item.token is not None
    digest = sha256(f"{item.id!r}\0{item.token}\0{queue}\0{place}".encode()).digest()
    return ObjectId(item.token.binary[:4] + digest[:8])
