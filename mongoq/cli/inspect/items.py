"""Commands about items: ``peek`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import click
from bson import ObjectId

from mongoq.cli.base.arguments import OBJECT_ID, QUEUE
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.output import Output, make_table, printable
from mongoq.cli.base.progress import Meter
from mongoq.cli.inspect.item_row import item_row
from mongoq.model.encoding.extended_json import json_text
from mongoq.model.item import Item, State
from mongoq.model.item_document import has_payload, item_document
from mongoq.protocol.history.query import make_query
from mongoq.protocol_threads.history.mistaken import refuse_unknown
from mongoq.protocol_threads.history.query import search
from mongoq.protocol_threads.insight import find_blockers, find_item
from mongoq.protocol_threads.sequence.hold import find_held_letters
from mongoq.sync import Broker

LIVE = "live"
"""State of ``peek`` that stands for all items that are not processed."""
DUE_COLUMNS = ("id", "due", "start_by", "priority", "attempts", "key", "sequence", "payload")
LIVE_COLUMNS = ("id", "state", "due", "start_by", "priority", "attempts", "key", "sequence", "payload")
OPTIONAL = frozenset({"start_by", "priority", "attempts", "key", "sequence"})
"""Columns that are left out if they are empty, or zero in each row."""
RESERVED_COLUMNS = ("id", "by", "since", "lease_until", "priority", "attempts", "key", "sequence", "payload")
BLOCKED_COLUMNS = ("id", "sequence", "blocked_by", "ready_from", "priority", "payload")
PROCESSED_COLUMNS = ("id", "processed", "start_by", "priority", "attempts", "key", "payload")
COLUMNS = {
    "ready": DUE_COLUMNS,
    "scheduled": DUE_COLUMNS,
    "reserved": RESERVED_COLUMNS,
    "expired": RESERVED_COLUMNS,
    "blocked": BLOCKED_COLUMNS,
    "processed": PROCESSED_COLUMNS,
    LIVE: LIVE_COLUMNS,
}
"""Columns of ``peek`` for each state."""
HOP_COLUMNS = ("queue", "stage", "ended", "to", "attempts", "taken", "settled", "by")


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Items, at most.")
@click.option(
    "--state",
    type=click.Choice([*get_args(State), LIVE]),
    default="ready",
    show_default=True,
    help="State of the items; live: all that are neither processed nor blocked.",
)
@with_broker
def peek(queue: str, number: int, state: Any, broker: Broker, output: Output) -> None:
    """Show the first items of a queue, in the order in which they will be claimed.

    Reserved items are shown with the worker that holds them, and the time of the claim by its clock. Blocked items come
    sequence by sequence, with the items that they wait for.
    """
    context = broker.queue(queue)._context
    wanted = make_query(
        context, since=None, until=None, where=None, state=None if state == LIVE else state, page=number
    )
    # Slice by slice, as for a filter: no index tells the states of due items, and of later ones, apart.
    with Meter() as meter:
        documents = broker._run_flow(search(context, wanted, limit=number, progress=meter.count("searched")))
    items = context.items(documents, broker._context.clock.now())[:number]
    if not items:
        broker._run(refuse_unknown, queue)
    blockers = broker._run_flow(find_blockers(context, items))
    rows = [
        _add_blockers(item_document(item) if output.as_json else item_row(item), item, blockers, output)
        for item in items
    ]
    kind = "ready, scheduled, reserved or expired" if state == LIVE else state
    empty = f"queue {queue!r} has no {kind} items"
    output.table(COLUMNS[state], rows, empty=empty, optional=OPTIONAL, shortened=["payload"])


def _add_blockers(row: dict[str, Any], item: Item[Any], blockers: Mapping[Any, Any], output: Output) -> dict[str, Any]:
    """Return a row or document with the items that a blocked item waits for; of others as it is."""
    if row["state"] != "blocked":
        return row
    found = blockers.get(item.sequence, [])
    return {**row, "blocked_by": found if output.as_json else _describe_blockers(found)}


def _describe_blockers(blockers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['id']} ({each['state']})" for each in blockers) or "none: see mongoq repair-sequences"


@click.command()
@click.argument("id", type=OBJECT_ID)
@with_broker
def show(id: ObjectId, broker: Broker, output: Output) -> None:
    """Show one item of any queue: its envelope, payload, last failure and trail; what it waits for or holds."""
    item = broker._run(find_item, id)
    if item is None:
        output.note(f"mongoq: there is no item {id} in {broker.namespace}; its queue may have kept no history of it")
        click.get_current_context().exit(OPERATION_FAILED)
    problem = getattr(item._document, "problem", None)
    if problem is not None:
        output.note(f"mongoq: item {id} is shown as far as it can be read: {problem}")
    document = item_document(item, whole=True)
    if document["state"] == "blocked":
        blockers = broker._run_flow(find_blockers(broker.queue(item.queue)._context, [item]))
        document = _add_blockers(document, item, blockers, output)
    if broker._run_flow(find_held_letters(broker.queue(item.queue)._context, [item])):
        document["holds"] = item.sequence
    if output.as_json:
        output.document(document)
        return
    for line in _lines(item, document):
        click.echo(line)
    if item.trail:
        hops = [{name: getattr(hop, name) for name in HOP_COLUMNS} for hop in item.trail]
        click.echo("\ntrail")
        output.console.print(make_table(HOP_COLUMNS, hops, optional=["stage"], width=output.console.width))


def _lines(item: Item[Any], document: dict[str, Any]) -> Iterator[str]:
    document.pop("trail", None)
    error = document.pop("error", None)
    nested = [name for name, value in document.items() if isinstance(value, Mapping | list) or name == "payload"]
    blocks = {name: document.pop(name) for name in nested}
    width = max(map(len, document))
    for name, value in document.items():
        yield f"{name.replace('_', ' '):<{width}}  {printable(str(value), keep='')}"
    for name, value in blocks.items():
        yield f"\n{name}\n{printable(json_text(value, indent=2))}"
    if not has_payload(item):
        yield "\nThe item is settled, and only its id is remembered."
    if error is not None:
        yield from _failure(error)


def _failure(error: Any) -> Iterator[str]:
    if not isinstance(error, Mapping):
        yield f"\nfailure\n{printable(json_text(error))}"
        return
    kind, message = error.get("type") or "error", error.get("message", "")
    yield f"\nfailure at {printable(str(error.get('at')), keep='')}"
    if trace := error.get("traceback"):
        yield printable(f"  {trace}".rstrip("\n"), indent="  ")
    yield printable(f"{kind}: {message}", indent="  ")
