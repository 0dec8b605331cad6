# Generated from mongoq/core/settle/apply_outcomes.py by scripts/unasync.py. Do not edit.
"""Apply the outcomes of handlers: maps each outcome to what is sent. Filters have a map in ``claim.worker_claims``.

At least once, a reserved item is settled by its outcome; each item of a batch on its own, whichever others fail. The
outputs of a fork are written in the transaction that settles it. At most once, an item leaves its queue before it is
run, and its outputs are pushed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mongoq.core.sequence.places import record_new
from mongoq.core.settle.apply_outcomes import OUTPUT_ID_REMEMBER, ItemOutcome, _make_outputs, _make_settlement
from mongoq.core.settle.move import Moves, Resolve
from mongoq.core.settle.settle import make_commit
from mongoq.core.settle.settlement import Batch, Wanted
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.push.insert import insert_item
from mongoq.core_threads.settle.send import settle_all
from mongoq.data.item import Item, id_key
from mongoq.data.outcomes import (
    Dead,
    Failed,
    Release,
    SettledElsewhere,
)
from mongoq.errors import MongoqError

# --- at least once -------------------------------------------------------------------------------


def apply_outcomes(
    context: QueueContext[Any], outcomes: Iterable[ItemOutcome], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Settle items by their outcomes, in as few commands as possible.

    Outcomes that need a transaction come last, many items in each.

    Returns the errors of items that were not settled, by ``id_key``. An impossible outcome, such as a move into a queue
    with an invalid name, leaves its item as it is.

    A crash in between leaves some items settled and the others reserved to the ends of their leases.
    """
    return apply_outcomes_of_queues([(context, outcomes)], resolve)


def apply_outcomes_of_queues(
    parts: Iterable[tuple[QueueContext[Any], Iterable[ItemOutcome]]], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Settle items of several queues by their outcomes; items that are settled elsewhere go there together."""
    failed: dict[Any, Exception] = {}
    elsewhere: dict[Any, list[Any]] = {}
    parts = list(parts)
    for context, _ in parts:  # before anything is sent: an error would hide what became of the items
        ensure_ready(context)
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
    failed |= (settle_all(wanted)).failed
    for settle_entries, entries in elsewhere.items():
        failed |= settle_entries(entries)
    return failed


# --- at most once --------------------------------------------------------------------------------


def commit_before_run(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Mapping[Any, Exception]:
    """Settle reserved items before they are run (as ``commit`` does), and return the errors of unsettled items.

    A crash after it has lost the run. An item with an uncertain result must not be run either.
    """
    ensure_ready(context)
    batch = Batch(context.broker.clock)
    return (settle_all([(item, make_commit(context, item, batch)) for item in items])).failed


def apply_outcomes_at_most_once(
    context: QueueContext[Any], outcomes: Sequence[ItemOutcome], resolve: Resolve
) -> Mapping[Any, Exception]:
    """Push the outputs of items that have left their queue (``insert``), each by its outcome; release the other items.

    Returns the errors of items without pushed outputs, by ``id_key``. A failed item goes to the dead queue, without
    another run; without a dead queue it is lost, which is logged. Outputs that a crash leaves unpushed are lost as
    well.
    """
    released = [(item, outcome) for item, outcome in outcomes if isinstance(outcome, Release)]
    failed: dict[Any, Exception] = {**(apply_outcomes(context, released, resolve))} if released else {}
    moves = Moves(context, resolve)
    for item, outcome in outcomes:
        try:
            envelopes = _make_outputs(context, item, outcome, moves)  # all are checked before the first one is pushed
            for envelope in envelopes:
                envelope |= {"once": context.broker.clock.now() + OUTPUT_ID_REMEMBER, "into": envelope["q"]}
                insert_item(context.broker, envelope, id_given=True)  # sent again, it finds itself
                record_new(context.broker, envelope)
            if isinstance(outcome, Failed | Dead) and envelopes:
                context.count("dead")
        except Exception as error:
            failed[id_key(item.id)] = error
    return failed
