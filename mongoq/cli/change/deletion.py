"""Commands ``purge``, ``remove`` and ``drop-queue``: deletion of items, or of a queue with all that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import click
from bson import ObjectId

from mongoq.cli.base.arguments import COUNT, OBJECT_ID, queue_argument, where_option
from mongoq.cli.base.changes import Change, amount, count_items, with_change
from mongoq.data.item import State
from mongoq.errors import MongoqError, PayloadInvalid
from mongoq.sync import Queue

INTERRUPTED_DELETION = "what was deleted by now is gone, and the rest is still there; run the command again to go on"
"""Sentence after Ctrl-C during a deletion: one command of the server deletes all, and may go on."""


@click.command(short_help="Delete items of a queue.")
@queue_argument
@click.option("--state", type=click.Choice(get_args(State)), help="Only items in this state; processed is the history.")
@where_option
@click.option("--limit", type=COUNT, help="Items, at most, the first ones.")
@with_change
def purge(
    *, queue: str, state: State | None, where: Mapping[str, Any] | None, limit: int | None, change: Change
) -> None:
    """Delete items of QUEUE: by default all that wait, and none that a worker holds.

    With --state reserved, workers lose the items that they hold.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    counted = change.count(handle.select(state=state, where=where), limit=limit, free=state is None)
    if not change.allows_counted(f"delete {amount(counted, f'{state} item' if state else 'item')} of {queue}"):
        return
    deleted = 0
    if not change.is_empty:
        with change.output.explaining(lambda: INTERRUPTED_DELETION):
            deleted = handle.purge(state=state, where=where, limit=change.limit, as_of=change.as_of)
    result = {"queue": queue, "state": state, "deleted": deleted}
    change.output.result(result, f"deleted {amount(deleted)} of {queue}")


@click.command(short_help="Delete one item.")
@queue_argument
@click.argument("id", type=OBJECT_ID)
@with_change
def remove(*, queue: str, id: ObjectId, change: Change) -> None:
    """Delete the item ID of QUEUE, live or in its history, unless a worker holds it.

    Its id is forgotten: pushed again, it is a new item.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    state = _find_state(handle, id)
    if not change.allows(f"delete the {state} item {id} of {queue}"):
        return
    if not handle.remove(id):
        # Between the read and the delete a worker has taken the item, or somebody else has deleted it.
        raise MongoqError(f"item {id} of {queue!r} was not deleted: its state is now {_find_state(handle, id)}")
    change.output.result({"queue": queue, "id": str(id), "deleted": 1}, f"deleted item {id} of {queue}")


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
@queue_argument
@click.option("--force", is_flag=True, help="Delete its live items too.")
@with_change
def drop_queue(*, queue: str, force: bool, change: Change) -> None:
    """Delete the history, the counters and the settings of QUEUE; with --force its live items as well.

    Items that come after the question stay, and the queue with them, unless --yes was given.

    Its dead queue is a queue of its own, and stays.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    change.note_time()
    claimable, blocked, kept = (count_items(handle.select(state=state)) for state in (None, "blocked", "processed"))
    live = claimable + blocked
    if live.number and not force:
        raise MongoqError(f"queue {queue!r} holds {amount(live, 'live item')}; --force deletes them as well")
    sentence = f"delete {queue} with {amount(live, 'live item')} and {amount(kept, 'item')} of its history"
    if not change.allows(sentence, live + kept):
        return
    with change.output.explaining(lambda: INTERRUPTED_DELETION):
        deleted = 0
        if change.as_of is not None and force:
            # What came after the question makes the drop fail, and stays.
            deleted = handle.purge(as_of=change.as_of) + handle.purge(state="reserved", as_of=change.as_of)
        deleted += change.broker.drop_queue(queue, force=force and change.as_of is None)
    live_text = f" with {amount(deleted, 'live item')}" if force else ""
    change.output.result({"queue": queue, "deleted": deleted}, f"deleted {queue}{live_text}")
