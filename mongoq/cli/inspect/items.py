"""Commands about items: ``peek``, ``show`` and ``history``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, get_args

import click
from bson import ObjectId

from mongoq.cli.base.arguments import FILTER, MAX_COUNT, MOMENT, OBJECT_ID, queue_argument
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import OPERATION_FAILED, Output, make_table, printable, progress
from mongoq.data.encoding.extended_json import json_text
from mongoq.data.envelope import claim_time, has_payload, item_document, show_state
from mongoq.data.item import Item, State
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
PAYLOAD_CHARACTERS = 200
"""Characters of a payload in a table, at most."""
DEFAULT_LIMIT = 100
"""Items that ``history`` shows without ``--limit``."""
PAGE = 500
"""Items in one page, at most, and in one table."""


def item_row(item: Item[Any]) -> dict[str, Any]:
    """Return an item as a row of a table, its payload in one shortened line."""
    payload = printable(json_text(item.stored("payload")), keep="")
    return {
        "id": item.id,
        "state": show_state(item),
        "due": _time(item.stored("when")),
        "start_by": _time(item.stored("start_by")),
        "by": item.stored("by"),
        "since": claim_time(item),
        "lease_until": _time(item.stored("when")),
        "processed": _time(item.stored("processed")),
        "priority": item.stored("priority"),
        "attempts": item.stored("attempts"),
        "key": item.stored("key"),
        "sequence": item.stored("sequence"),
        "ready_from": _time(item.stored("ready_from")),
        "payload": payload if len(payload) <= PAYLOAD_CHARACTERS else payload[: PAYLOAD_CHARACTERS - 1] + "…",
    }


def _time(value: Any) -> Any:
    return value if isinstance(value, datetime) else None


@click.command()
@queue_argument
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=10, help="Items, at most.")
@click.option(
    "--state",
    type=click.Choice([*get_args(State), LIVE]),
    default="ready",
    help="State of the items; live: all that are neither processed nor blocked.",
)
@with_broker
def peek(queue: str, number: int, state: Any, broker: Broker, output: Output) -> None:
    """Show the first items of a queue, in the order in which they will be claimed.

    Reserved items are shown with the worker that holds them, and the time of the claim by its clock. Blocked items come
    sequence by sequence, with the items that they wait for.
    """
    # Slice by slice, as for a filter: no index tells the states of due items, and of later ones, apart.
    with progress() as show:
        chosen = broker.queue(queue).select(state=None if state == LIVE else state)
        items = chosen.read(number, progress=show)
    if not items:
        broker.inspect().check_known(queue)
    blockers = broker.inspect().blockers(items)
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
    found: Sequence[Mapping[str, Any]] = blockers.get(item.sequence, [])
    text = ", ".join(f"{each['id']} ({each['state']})" for each in found) or "none: see mongoq repair-sequences"
    return {**row, "blocked_by": found if output.as_json else text}


@click.command()
@queue_argument
@click.option("--since", type=MOMENT, metavar="TIME", help="Processed at this time or later: 2026-11-26T14:00Z, or 2h.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Processed before this time.")
@click.option("--where", type=FILTER, metavar="JSON", help='Payloads that match, such as \'{"total": {"$gt": 100}}\'.')
@click.option(
    "--limit", type=click.IntRange(0, MAX_COUNT), default=DEFAULT_LIMIT, help="Items to show, at most; 0 for all."
)
@with_broker
def history(*, queue: str, limit: int, broker: Broker, output: Output, **chosen: Any) -> None:
    """Show the processed items of a queue, oldest first.

    Times are UTC, unless they name another zone; 90s, 30m, 2h, 3d and 1w are times ago. The filter has the operators
    of history(where=); values may be extended JSON, such as {"$oid": …} and {"$date": …}.
    """
    since, until = chosen["since"], chosen["until"]
    if since is not None and until is not None and until < since:
        raise click.BadParameter("it lies before --since", param_hint="--until")
    shown, size = 0, 1 if output.as_json else PAGE
    with progress() as show:
        search = broker.queue(queue).select(state="processed", **chosen)
        pages = search.pages(page=min(PAGE, limit or PAGE), progress=show)
        found = islice((item for page in pages for item in page), limit or None)
        while items := list(islice(found, size)):  # a table for each page, so that a long history takes little memory
            show(None)
            rows = map(item_document if output.as_json else item_row, items)
            output.table(PROCESSED_COLUMNS, rows, empty="", optional=OPTIONAL, shortened=["payload"])
            shown += len(items)
    if not shown:
        broker.inspect().check_known(queue)
        filtered = any(option is not None for option in chosen.values())
        output.line(f"queue {queue!r} has no processed items" + (" that match" if filtered else ""))
        if (hint := broker.inspect().explain_no_history(queue)) is not None:
            output.note(hint)
    elif shown == limit:
        output.note(f"these are the first {shown:,}, and there may be more: --limit 0 shows all, --since later ones")


@click.command()
@click.argument("id", type=OBJECT_ID)
@with_broker
def show(id: ObjectId, broker: Broker, output: Output) -> None:
    """Show one item of any queue: its envelope, payload, last failure and trail; what it waits for or holds."""
    inspection = broker.inspect()
    item = inspection.item(id)
    if item is None:
        output.note(f"mongoq: there is no item {id} in {broker.namespace}; its queue may have kept no history of it")
        click.get_current_context().exit(OPERATION_FAILED)
    if item.problem is not None:
        output.note(f"mongoq: item {id} is shown as far as it can be read: {item.problem}")
    document = item_document(item, whole=True)
    if document["state"] == "blocked":
        document = _add_blockers(document, item, inspection.blockers([item]), output)
    if inspection.holders([item]) == [True]:
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
    if error is None:
        return
    if not isinstance(error, Mapping):
        yield f"\nfailure\n{printable(json_text(error))}"
        return
    yield f"\nfailure at {printable(str(error.get('at')), keep='')}"
    if trace := error.get("traceback"):
        yield printable(f"  {trace}".rstrip("\n"), indent="  ")
    yield printable(f"{error.get('type') or 'error'}: {error.get('message', '')}", indent="  ")
