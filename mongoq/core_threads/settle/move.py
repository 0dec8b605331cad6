# Generated from mongoq/core/settle/move.py by scripts/unasync.py. Do not edit.
"""Moves: hand an item to another queue in one fenced update; of many moves, equal options are checked once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from mongoq.core.command import with_place
from mongoq.core.settle.move import Destination, Moves, Resolve, check_move, make_move
from mongoq.core.settle.move import destination as destination
from mongoq.core.settle.send import check_items
from mongoq.core.settle.settlement import Batch
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.settle.send import settle, settle_item
from mongoq.data.arguments import read_list
from mongoq.data.item import Item
from mongoq.data.outcomes import Move
from mongoq.errors import ArgumentInvalid


def move(
    context: QueueContext[Any],
    item: Item[Any],
    to: Destination,
    options: Move,
    *,
    key: str | None = None,
    session: Any = None,
) -> None:
    """Move an item to another queue with a fresh budget of attempts, in one update; with a key, by its own command."""
    checked = check_move(context, to, options, key=key)
    is_shared = key is None and checked.sequence is None
    make = partial(make_move, checked=checked)
    settle_item(context, item, make, joined=session is not None, shared=is_shared)


def move_many(context: QueueContext[Any], moves: Iterable[tuple[Item[Any], Move]], resolve: Resolve) -> None:
    """Move items to other queues; ``resolve`` turns a handle into its context."""
    pairs = read_list(moves, "moves")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentInvalid(f"moves[{place}]", f"a tuple of an item and a Move, not {type(pair).__name__}")
        if not isinstance(pair[1], Move):
            raise ArgumentInvalid(f"moves[{place}]", f"a Move beside the item, not {type(pair[1]).__name__}")
    items = check_items(context, [item for item, _ in pairs], "moves")
    known, checked = Moves(context, resolve), []
    for place, (_, outcome) in enumerate(pairs):
        try:
            checked.append(known.check(outcome))
        except ArgumentInvalid as error:
            raise with_place(error, f"moves[{place}].") from error
    if not items:
        return
    ensure_ready(context)
    batch = Batch(context.broker.clock)
    made = [(item, make_move(context, item, batch, each)) for item, each in zip(items, checked, strict=True)]
    settle(context, made)
