"""Command ``replay``: pushes copies of processed items once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from bson import ObjectId

from mongoq.cli.base.amounts import (
    CLOCK_MARGIN,
    agreed_limit,
    amount,
    changes_nothing,
    count_items,
    may_change,
    time_of_count,
)
from mongoq.cli.base.arguments import COUNT, FILTER, MOMENT, OBJECT_ID, QUEUE
from mongoq.cli.base.confirmation import Confirmation, with_confirmation
from mongoq.cli.base.connection import new_queue_text, with_broker
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.help import examples
from mongoq.cli.base.output import Output
from mongoq.cli.base.progress import Meter, explain_interruption
from mongoq.model.clock import MILLISECOND
from mongoq.model.copies import Replayed
from mongoq.protocol.history.query import BoundedCount, make_query
from mongoq.protocol_threads.history.mistaken import explain_no_history, is_known, refuse_unknown
from mongoq.protocol_threads.history.query import count_range
from mongoq.sync import Broker, Queue


@click.command(
    short_help="Push copies of processed items, each once.",
    epilog=examples(
        r"""mongoq replay orders --since 2h --where '{"city": "Paris"}' --dry-run""",
        "mongoq replay orders --id 65f0c0ffee65f0c0ffee0001 --to orders.again",
    ),
)
@click.argument("queue", type=QUEUE)
@click.option("--id", "ids", type=OBJECT_ID, multiple=True, help="Only this item; repeatable.")
@click.option("--since", type=MOMENT, help="Processed at this time or later; a time, or 30m for 30 minutes ago.")
@click.option("--until", type=MOMENT, help="Processed before this time.")
@click.option("--where", type=FILTER, help='Filter on payloads in JSON, such as \'{"city": "Paris"}\'.')
@click.option("--to", type=QUEUE, help="Queue of the copies; by default the same queue.")
@click.option("--limit", type=COUNT, help="Items, at most, the oldest first.")
@click.option("--label", default="", help="Name of this replay: with another one, the same items are copied again.")
@with_confirmation
@with_broker
def replay(
    *,
    queue: str,
    ids: Sequence[ObjectId],
    since: datetime | None,
    until: datetime | None,
    where: Mapping[str, Any] | None,
    to: str | None,
    limit: int | None,
    label: str,
    confirmation: Confirmation,
    broker: Broker,
    output: Output,
) -> None:
    """Push copies of items in the history of QUEUE.

    The same replay again pushes nothing: each copy is pushed once, unless --label names another replay. Dead letters
    are sent back by "mongoq dead replay".
    """
    handle = broker.queue(queue)
    broker._run(refuse_unknown, handle.name)
    chosen: dict[str, Any] = {"ids": list(ids) or None, "since": since, "until": until, "where": where}
    where_to = target_text(broker, to or queue)
    if not confirmation.dry_run:
        if until is None and not ids and (counted_at := time_of_count(confirmation, broker)) is not None:
            # What was done a moment ago is in it: the limit keeps out what comes later.
            chosen["until"] = counted_at + CLOCK_MARGIN + MILLISECOND
        counted = _count(handle, limit, **chosen)
        change = f"push copies of {amount(counted)} of {queue} {where_to}"
        if not may_change(confirmation, output, change, counted):
            return
        if changes_nothing(confirmation, counted):
            _report(output, Replayed(), handle, target=to or queue, is_dry=False)
            return
        if chosen["until"] is not until:
            limit = agreed_limit(limit, chosen["until"], counted)
    so_far = Replayed()

    def show(far: Replayed) -> None:
        nonlocal so_far
        so_far = far
        meter.show(f"{amount(far.found)} read, {far.pushed:,} to push")

    def explain() -> str:
        if confirmation.dry_run:
            return "nothing was pushed"
        return f"{amount(so_far.pushed)} pushed, and maybe a batch under way; the same command goes on"

    with Meter() as meter, explain_interruption(output, explain):
        meter.show("reading the history …")
        done = handle.replay(**chosen, to=to, limit=limit, label=label, dry_run=confirmation.dry_run, progress=show)
    _report(output, done, handle, target=to or queue, is_dry=confirmation.dry_run)


def _report(output: Output, done: Replayed, handle: Queue[Any], *, target: str, is_dry: bool) -> None:
    """Print the result; first, where nothing was found in a queue without history, how to have it keep one."""
    if not done.found and (hint := handle._run(explain_no_history)) is not None:
        output.note(hint)
    report(output, done, source=handle.name, target=target, is_dry=is_dry)


def _count(handle: Queue[Any], limit: int | None, *, ids: Any, since: Any, until: Any, where: Any) -> BoundedCount:
    """Count the items that a replay would read."""
    if ids is not None:
        return BoundedCount(len(set(ids)))
    wanted = make_query(handle._context, since=since, until=until, where=where, state="processed", page=500)
    return count_items(handle, count_range, wanted, at_most=limit)


def report(output: Output, done: Replayed, *, source: str, target: str, is_dry: bool) -> None:
    """Print the result of a replay; items that were refused or are missing make the command fail."""
    if output.as_json:
        counts = {name: getattr(done, name) for name in ("found", "pushed", "already", "refused")}
        result = {"queue": source, "to": target, "dry_run": is_dry, **counts}
        output.document({**result, **failures_of(done)})
    else:
        verb = "would push" if is_dry else "pushed"
        before = f"; {done.already:,} were pushed before" if done.already else ""
        output.line(f"{verb} {done.pushed:,} of {amount(done.found)} of {source} to {target}{before}")
        report_failures(output, done, missing="not in the history")
    exit_if_incomplete(done)


def target_text(broker: Broker, to: str) -> str:
    """Return the target of a change; a queue that is new may be a misspelt one."""
    return f"to {to}" if broker._run(is_known, to) else f"to {to}{new_queue_text(broker)}"


def failures_of(done: Replayed) -> dict[str, Any]:
    """Return the items that did not go, for JSON."""
    refusals = [{"id": str(id), "reason": reason} for id, reason in done.refusals]
    return {"refusals": refusals, "missing": list(map(str, done.missing))}


def report_failures(output: Output, done: Replayed, *, missing: str) -> None:
    """Print the items that did not go, a line each; ``missing`` says where items are not."""
    for id, reason in done.refusals:
        output.line(f"refused {id}: {reason}")
    if done.refused > len(done.refusals):
        output.line(f"refused {done.refused - len(done.refusals):,} more")
    for id in done.missing:
        output.line(f"{missing}: {id}")


def exit_if_incomplete(done: Replayed) -> None:
    """Make the command fail if items were refused or are missing."""
    if done.refused or done.missing:
        click.get_current_context().exit(OPERATION_FAILED)
