"""Command ``replay``: pushes copies of processed items once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
from bson import ObjectId

from mongoq import BoundedCount
from mongoq.cli.base.arguments import COUNT, MOMENT, OBJECT_ID, QUEUE, examples, queue_argument, where_option
from mongoq.cli.base.changes import CLOCK_MARGIN, Change, amount, with_change
from mongoq.cli.base.connection import new_queue_text
from mongoq.cli.base.output import OPERATION_FAILED, Output, progress
from mongoq.data.clock import MILLISECOND
from mongoq.data.copies import Replayed
from mongoq.sync import Broker


@click.command(
    short_help="Push copies of processed items, each once.",
    epilog=examples(
        r"""mongoq replay orders --since 2h --where '{"city": "Paris"}' --dry-run""",
        "mongoq replay orders --id 65f0c0ffee65f0c0ffee0001 --to orders.again",
    ),
)
@queue_argument
@click.option("--id", "ids", type=OBJECT_ID, multiple=True, help="Only this item; repeatable.")
@click.option("--since", type=MOMENT, help="Processed at this time or later; a time, or 30m for 30 minutes ago.")
@click.option("--until", type=MOMENT, help="Processed before this time.")
@where_option
@click.option("--to", type=QUEUE, help="Queue of the copies; by default the same queue.")
@click.option("--limit", type=COUNT, help="Items, at most, the oldest first.")
@click.option("--label", help="Name of this replay: with another one, the same items are copied again.")
@with_change
def replay(
    *,
    queue: str,
    ids: Sequence[ObjectId],
    to: str | None,
    limit: int | None,
    label: str | None,
    change: Change,
    **chosen: Any,
) -> None:
    """Push copies of items in the history of QUEUE.

    The same replay again pushes nothing: each copy is pushed once, unless --label names another replay. Dead letters
    are sent back by "mongoq dead replay".
    """
    output, target, so_far = change.output, to or queue, Replayed()
    handle, inspection = change.broker.queue(queue), change.broker.inspect()
    inspection.check_known(queue)
    where_to = target_text(change.broker, target)
    if not change.dry_run:
        if ids:
            counted = change.counted = BoundedCount(len(set(ids)))
        else:
            if chosen["until"] is None and (counted_at := change.note_time()) is not None:
                # What was done a moment ago is in it: the limit keeps out what comes later.
                chosen["until"] = counted_at + CLOCK_MARGIN + MILLISECOND
            counted = change.count(handle.select(state="processed", **chosen), limit=limit, timed=False)
            limit = change.limit
        if not change.allows_counted(f"push copies of {amount(counted)} of {queue} {where_to}"):
            return

    def explain(done: Replayed) -> str:
        if change.dry_run:
            return "nothing was pushed"
        return f"{amount(done.pushed)} pushed, and maybe a batch under way; the same command goes on"

    if change.dry_run or not change.is_empty:
        options = {"to": to, "limit": limit, "label": label or "", "dry_run": change.dry_run, **chosen}
        so_far = follow(output, partial(handle.replay, ids=list(ids) or None, **options), explain)
    if not so_far.found and (hint := inspection.explain_no_history(queue)) is not None:
        output.note(hint)
    before = f"; {so_far.already:,} were pushed before" if so_far.already else ""
    verb = "would push" if change.dry_run else "pushed"
    report(
        output,
        so_far,
        {"queue": queue, "to": target, "dry_run": change.dry_run},
        ("found", "pushed", "already", "refused"),
        [f"{verb} {so_far.pushed:,} of {amount(so_far.found)} of {queue} to {target}{before}"],
        missing="not in the history",
    )


def target_text(broker: Broker, to: str) -> str:
    """Return the target of a change; a queue that is new may be a misspelt one."""
    return f"to {to}" if broker.inspect().is_known(to) else f"to {to}{new_queue_text(broker)}"


def follow(output: Output, run: Callable[..., Replayed], explain: Callable[[Replayed], str]) -> Replayed:
    """Run a replay, show its progress, and explain after Ctrl-C how far it came."""
    done = Replayed()

    def note(so_far: Replayed) -> None:
        nonlocal done
        done = so_far
        show(done.found)

    with progress() as show, output.explaining(lambda: explain(done)):
        return run(progress=note)


def report(
    output: Output, done: Replayed, facts: dict[str, Any], counts: Sequence[str], texts: Sequence[str], *, missing: str
) -> None:
    """Print the result of a replay; items that were refused or are missing make the command fail."""
    refusals = [{"id": str(id), "reason": reason} for id, reason in done.refusals]
    numbers = {name: getattr(done, name) for name in counts}
    if output.as_json:
        output.document({**facts, **numbers, "refusals": refusals, "missing": list(map(str, done.missing))})
    else:
        for text in texts:
            output.line(text)
        output.refusals(done)
        for id in done.missing:
            output.line(f"{missing}: {id}")
    if done.refused or done.missing:
        click.get_current_context().exit(OPERATION_FAILED)
