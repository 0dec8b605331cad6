"""Commands ``purge``, ``remove`` and ``drop-queue``: deletion of items, or of a queue with all that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import click
from bson import ObjectId

from mongoq.cli.base.amounts import agreed_limit, amount, changes_nothing, count_items, may_change, time_of_count
from mongoq.cli.base.arguments import COUNT, FILTER, OBJECT_ID, QUEUE
from mongoq.cli.base.confirmation import Confirmation, with_confirmation
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import Output
from mongoq.cli.base.progress import DELETION_INTERRUPTED, explain_interruption
from mongoq.errors import MongoqError, PayloadInvalid
from mongoq.model.item import State
from mongoq.protocol.history.query import make_query
from mongoq.protocol_threads import admin
from mongoq.protocol_threads.history.mistaken import refuse_unknown
from mongoq.protocol_threads.history.query import count_range
from mongoq.sync import Broker, Queue

LIVE_STATES: tuple[State | None, ...] = (None, "reserved")
"""States of a purge that together delete all live items."""


@click.command(short_help="Delete items of a queue.")
@click.argument("queue", type=QUEUE)
@click.option("--state", type=click.Choice(get_args(State)), help="Only items in this state; processed is the history.")
@click.option("--where", type=FILTER, help='Filter on payloads in JSON, such as \'{"city": "Paris"}\'.')
@click.option("--limit", type=COUNT, help="Items, at most, the first ones.")
@with_confirmation
@with_broker
def purge(
    *,
    queue: str,
    state: State | None,
    where: Mapping[str, Any] | None,
    limit: int | None,
    confirmation: Confirmation,
    broker: Broker,
    output: Output,
) -> None:
    """Delete items of QUEUE: by default all that wait, and none that a worker holds.

    With --state reserved, workers lose the items that they hold.
    """
    handle = broker.queue(queue)
    broker._run(refuse_unknown, handle.name)
    until = time_of_count(confirmation, broker)
    counted = count_items(handle, admin.count_purge, state, where=where, at_most=limit)
    change = f"delete {amount(counted, f'{state} item' if state else 'item')} of {queue}"
    if not may_change(confirmation, output, change, counted):
        return
    with output.progress("deleting …"), explain_interruption(output, lambda: DELETION_INTERRUPTED):
        nothing = changes_nothing(confirmation, counted)
        limit = agreed_limit(limit, until, counted)
        deleted = 0 if nothing else handle._run(admin.purge, state, where=where, limit=limit, until=until)
    if output.as_json:
        output.document({"queue": queue, "state": state, "deleted": deleted})
    else:
        output.line(f"deleted {amount(deleted)} of {queue}")


@click.command(short_help="Delete one item.")
@click.argument("queue", type=QUEUE)
@click.argument("id", type=OBJECT_ID)
@with_confirmation
@with_broker
def remove(*, queue: str, id: ObjectId, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Delete the item ID of QUEUE, live or in its history, unless a worker holds it.

    Its id is forgotten: pushed again, it is a new item.
    """
    handle = broker.queue(queue)
    broker._run(refuse_unknown, handle.name)
    state = _find_state(handle, id)
    if not confirmation.allows(output, f"delete the {state} item {id} of {queue}", count=1):
        return
    if not handle.remove(id):
        # Between the read and the delete a worker has taken the item, or somebody else has deleted it.
        raise MongoqError(f"item {id} of {queue!r} was not deleted: its state is now {_find_state(handle, id)}")
    if output.as_json:
        output.document({"queue": queue, "id": str(id), "deleted": 1})
    else:
        output.line(f"deleted item {id} of {queue}")


def _find_state(handle: Queue[Any], id: ObjectId) -> str:
    """Return the state of an item that can be deleted.

    Raises:
        MongoqError: the queue has no such item, or a worker holds it.
    """
    try:
        item = handle.get(id)
    except PayloadInvalid as invalid:
        # Its bytes cannot be decoded, but it can be deleted.
        item = invalid.item
    if item is None:
        raise MongoqError(f"queue {handle.name!r} has no item {id}")
    if item.state == "reserved":
        raise MongoqError(f"item {id} of {handle.name!r} is reserved until {item.lease_until}; its worker holds it")
    return item.state


@click.command("drop-queue", short_help="Delete a queue with all that is stored of it.")
@click.argument("queue", type=QUEUE)
@click.option("--force", is_flag=True, help="Delete its live items too.")
@with_confirmation
@with_broker
def drop_queue(*, queue: str, force: bool, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Delete the history, the counters and the settings of QUEUE; with --force its live items as well.

    Items that come after the question stay, and the queue with them, unless --yes was given.

    Its dead queue is a queue of its own, and stays.
    """
    handle = broker.queue(queue)
    broker._run(refuse_unknown, handle.name)
    until = time_of_count(confirmation, broker)
    ranges = [
        make_query(handle._context, since=None, until=None, where=None, state=state, page=1)
        for state in (None, "blocked", "processed")
    ]
    claimable, blocked, kept = (count_items(handle, count_range, wanted) for wanted in ranges)
    live = claimable + blocked
    if live.number and not force:
        raise MongoqError(f"queue {queue!r} holds {amount(live, 'live item')}; --force deletes them as well")
    change = f"delete {queue} with {amount(live, 'live item')} and {amount(kept, 'item')} of its history"
    if not confirmation.allows(output, change, count=(live + kept).number, exact=live.exact and kept.exact):
        return
    with output.progress("deleting …"), explain_interruption(output, lambda: DELETION_INTERRUPTED):
        deleted = 0
        if until is not None and force:
            # What came after the question makes the drop fail, and stays.
            deleted = sum(handle._run(admin.purge, state, until=until) for state in LIVE_STATES)
        deleted += broker.drop_queue(queue, force=force and until is None)
    if output.as_json:
        output.document({"queue": queue, "deleted": deleted})
    else:
        output.line(f"deleted {queue}" + (f" with {amount(deleted, 'live item')}" if force else ""))
