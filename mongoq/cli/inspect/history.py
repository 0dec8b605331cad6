"""Command ``history``: the processed items of a queue, oldest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import click

from mongoq.cli.base.arguments import FILTER, MAX_COUNT, MOMENT, QUEUE
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import Output
from mongoq.cli.base.progress import Meter
from mongoq.cli.inspect.item_row import item_row
from mongoq.cli.inspect.items import OPTIONAL, PROCESSED_COLUMNS
from mongoq.model.item import Item
from mongoq.model.item_document import item_document
from mongoq.protocol.history.query import Query, make_query
from mongoq.protocol_threads.history.mistaken import explain_no_history, refuse_unknown
from mongoq.protocol_threads.history.query import Search
from mongoq.sync import Broker

DEFAULT_LIMIT = 100
"""Items that are shown without ``--limit``."""
PAGE = 500
"""Items in one page, at most, and in one table."""


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("--since", type=MOMENT, metavar="TIME", help="Processed at this time or later: 2026-11-26T14:00Z, or 2h.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Processed before this time.")
@click.option("--where", type=FILTER, metavar="JSON", help='Payloads that match, such as \'{"total": {"$gt": 100}}\'.')
@click.option(
    "--limit",
    type=click.IntRange(0, MAX_COUNT),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Items to show, at most; 0 for all.",
)
@with_broker
def history(
    *,
    queue: str,
    since: datetime | None,
    until: datetime | None,
    where: Mapping[str, Any] | None,
    limit: int,
    broker: Broker,
    output: Output,
) -> None:
    """Show the processed items of a queue, oldest first.

    Times are UTC, unless they name another zone; 90s, 30m, 2h, 3d and 1w are times ago. The filter has the operators
    of history(where=); values may be extended JSON, such as {"$oid": …} and {"$date": …}.
    """
    if since is not None and until is not None and until < since:
        raise click.BadParameter("it lies before --since", param_hint="--until")
    context = broker.queue(queue)._context
    page = min(PAGE, limit) if limit else PAGE
    wanted = make_query(context, since=since, until=until, where=where, state="processed", page=page)
    found = _find(broker, context, wanted)
    shown = 0
    for items in _chunks(found, 1 if output.as_json else PAGE, limit):
        columns, rows = PROCESSED_COLUMNS, map(item_document if output.as_json else item_row, items)
        output.table(columns, rows, empty="", optional=OPTIONAL, shortened=["payload"])
        shown += len(items)
    if not shown:
        broker._run(refuse_unknown, queue)
        filtered = any(option is not None for option in (since, until, where))
        output.line(f"queue {queue!r} has no processed items" + (" that match" if filtered else ""))
        if (hint := broker._run_flow(explain_no_history(context))) is not None:
            output.note(hint)
    elif shown == limit:
        output.note(f"these are the first {shown:,}, and there may be more: --limit 0 shows all, --since later ones")


def _find(broker: Broker, context: Any, wanted: Query) -> Iterator[Item[Any]]:
    search = Search(context, wanted)
    with Meter() as meter:
        while search.rest is not None:
            documents = broker._run_flow(search.read())
            if documents:
                meter.clear()
            yield from context.items(documents, broker._context.clock.now())
            meter.show(f"{search.examined:,} items searched")


def _chunks(found: Iterator[Item[Any]], size: int, limit: int) -> Iterator[list[Item[Any]]]:
    """Return the first items in lists of one table each, so that a long history takes little memory."""
    first = islice(found, limit or None)
    while items := list(islice(first, size)):
        yield items
