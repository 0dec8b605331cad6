"""Apply the outcomes of handlers: each item of a batch is settled on its own, whichever others fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from mongoq.errors import MongoqError
from mongoq.model.arguments import duration
from mongoq.model.envelope import error_document
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Dead, Failed, Fork, Move, Outcome, Release, SettledElsewhere
from mongoq.protocol.base.fence import is_back
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow
from mongoq.protocol.settle import move, settle
from mongoq.protocol.settle.bulk import Put, Settlement, run_bulk
from mongoq.protocol.settle.fork import fork_items
from mongoq.protocol.settle.move_many import Moves, Resolve, make_move
from mongoq.protocol.settle.settle_many import (
    Batch,
    make_burial,
    make_commit,
    make_release,
    make_rollback,
)
from mongoq.protocol.state.context import QueueContext

__all__ = ["apply_outcomes", "apply_outcomes_of_queues"]

Verdict = tuple[Item[Any], "Outcome | None"]


def apply_outcomes(
    context: QueueContext[Any], verdicts: Iterable[Verdict], resolve: Resolve
) -> Flow[Mapping[Any, Exception]]:
    """Settle items by their outcomes, in as few commands as possible; ``None`` and ``Drop`` commit.

    Outcomes that need a transaction come last, many items in each.

    A ``Retry`` has become a ``Failed`` by now, which knows the delay.

    Returns the errors of items that were not settled, by ``id_key``. An impossible outcome, such as a move into a queue
    with an invalid name, leaves its item as it is.

    A crash in between leaves some items settled and the others reserved to the ends of their leases.
    """
    return (yield from apply_outcomes_of_queues([(context, verdicts)], resolve))


def apply_outcomes_of_queues(
    parts: Iterable[tuple[QueueContext[Any], Iterable[Verdict]]], resolve: Resolve
) -> Flow[Mapping[Any, Exception]]:
    """Settle items of several queues by their outcomes; outcomes with a way of their own are settled together."""
    failed: dict[Any, Exception] = {}
    apart: dict[Any, list[Any]] = {}
    for context, verdicts in parts:
        plain: list[Verdict] = []
        for item, outcome in verdicts:
            if isinstance(outcome, SettledElsewhere):
                apart.setdefault(outcome.way, []).append(outcome.told)
            else:
                plain.append((item, outcome))
        if plain:
            failed |= yield from _apply_outcomes(context, plain, resolve)
    for way, told in apart.items():
        failed |= yield from way(told)
    return failed


def _apply_outcomes(
    context: QueueContext[Any], verdicts: Iterable[Verdict], resolve: Resolve
) -> Flow[dict[Any, Exception]]:
    yield from ensure_ready(context)
    batch, moves = Batch(context.broker.clock), Moves(context, resolve)
    wanted: list[tuple[Item[Any], Settlement]] = []
    failed: dict[Any, Exception] = {}
    forks: list[tuple[Item[Any], Fork]] = []
    for item, outcome in verdicts:
        if isinstance(outcome, Fork) and outcome.moves:
            forks.append((item, outcome))
            continue
        try:
            wanted.append((item, _make_settlement(context, item, outcome, batch, moves)))
        except MongoqError as error:
            failed[id_key(item.id)] = error
    tally = yield from run_bulk(context, wanted)
    failed |= tally.failed
    failed |= yield from fork_items(context, forks, batch, moves)
    return failed


def _make_settlement(
    context: QueueContext[Any], item: Item[Any], outcome: Outcome | None, batch: Batch, moves: Moves
) -> Settlement:
    if isinstance(outcome, Failed):
        if not outcome.counted:
            return _make_uncounted_rollback(context, outcome, batch)
        return make_rollback(context, item, batch, length=duration(outcome.delay, "delay"), error=outcome.error)
    if isinstance(outcome, Dead):
        alone = partial(move.bury, context, reason=outcome.reason, error=None)
        return make_burial(context, item, batch, reason=outcome.reason, error=None, alone=alone)
    if isinstance(outcome, Move):
        return make_move(context, item, moves.check(outcome), batch)
    if isinstance(outcome, Release):
        return make_release(context, item, batch)
    return make_commit(context, item, batch)


def _make_uncounted_rollback(context: QueueContext[Any], outcome: Failed, batch: Batch) -> Settlement:
    """Return the settlement of an item that failed through no fault of its own: later, its attempt not counted."""
    when = batch.now + duration(outcome.delay, "delay")
    failure = error_document(outcome.error, batch.now)
    update = settle.rollback_update(when, failure)
    update["$inc"] = {"attempts": -1}
    alone = partial(settle.send_rollback, context, update=update)
    happened = partial(is_back, when=when, fewer=1)
    return Settlement(update, happened, "rollback", alone, put=Put(context.name, when))
