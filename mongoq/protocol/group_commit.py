"""Single operations with shared commands: each caller gets the exact result of its own part.

Every operation here also exists by itself (``push``, ``claim``, ``settle``, ``move``): a lone caller uses that form. An
operation in a transaction is sent by itself as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from mongoq.model.arguments import Duration, duration
from mongoq.model.envelope import error_document
from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Item, has_place, id_key
from mongoq.model.outcomes import Move
from mongoq.model.settings import KEEP
from mongoq.protocol.base.fence import LEASE_MARGIN, begin_settle, ends_by
from mongoq.protocol.claim import reserve as claim
from mongoq.protocol.claim.judge import OnInvalid
from mongoq.protocol.claim.reserve import NotYet, claim_for_callers
from mongoq.protocol.flow import Command, Flow, Shared, copies, own_error
from mongoq.protocol.push.push import push
from mongoq.protocol.settle import move as moves
from mongoq.protocol.settle import settle
from mongoq.protocol.settle.bulk import BulkResult, run_bulk
from mongoq.protocol.settle.in_order import settle_one
from mongoq.protocol.settle.settle import make_commit, make_extension, make_rollback
from mongoq.protocol.settle.settlement import Batch, Settlement
from mongoq.protocol.state.context import QueueContext

__all__ = ["commit", "extend", "move", "push", "reserve", "rollback"]

M = TypeVar("M")


MakeSettlement = Callable[[QueueContext[Any], Item[Any], Batch], Settlement]


@dataclass(slots=True, eq=False)
class _Settling:
    """One caller's part of a batch: an item that is ready to be settled, and the maker of its settlement."""

    context: QueueContext[Any]
    item: Item[Any]
    make: MakeSettlement

    def alone(self) -> Flow[Any]:
        """Settle the item by a command of its own."""
        settlement = self.make(self.context, self.item, Batch(self.context.broker.clock))
        return settle_one(self.context, self.item, settlement)


def reserve(
    context: QueueContext[M], *, lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
) -> Flow[Item[M] | None]:
    """Claim the first eligible item, or one of the first, when other callers claim at the same time."""
    share = _share_claim if context.broker.group_commit else None
    return claim.reserve(context, lease=lease, wait=wait, on_invalid=on_invalid, share=share)


def _share_claim(context: QueueContext[Any], lease: timedelta) -> Shared[Item[Any] | None]:
    return Shared(("reserve", context.name, lease), _claim_for_all, (context, lease), _undo_claim)


def _undo_claim(item: Item[Any] | None) -> Command[Any] | None:
    return None if item is None or item.due is None else settle.release_command(item.id, item.token, item.due)


def _claim_for_all(entries: list[tuple[QueueContext[Any], timedelta]]) -> Flow[list[Item[Any] | NotYet | None]]:
    """Claim an item for each caller: the earliest callers get the first items, the others ask again."""
    context, lease = entries[0]
    items = yield from claim_for_callers(context, len(entries), lease)
    return [*items, *[NotYet() if items else None] * (len(entries) - len(items))]


def _share_settlement(context: QueueContext[Any], item: Item[Any], make: MakeSettlement) -> Flow[Any]:
    yield from begin_settle(context, item)
    settling = _Settling(context, item, make)
    # Near the end of its lease the answer must be exact, so the item goes alone; other callers need not wait for it.
    # So does an item of a sequence, whose settlement may need a transaction.
    if has_place(item) or ends_by(item, context.state.calm_at + LEASE_MARGIN):
        return (yield from settling.alone())
    return (yield Shared(("settle", context.name), _settle_for_all, settling))


def _settle_for_all(entries: list[_Settling]) -> Flow[list[Any]]:
    """Settle the items of several callers; if two callers settle the same item, the second one is sent by itself."""
    if len(entries) == 1:
        return [(yield from entries[0].alone())]
    context = entries[0].context
    batch = Batch(context.broker.clock)
    first: dict[Any, _Settling] = {}
    answers: dict[_Settling, Any] = {}
    for entry in entries:
        first.setdefault(id_key(entry.item.id), entry)
    wanted: dict[Any, tuple[Item[Any], Settlement]] = {}
    for key, entry in first.items():
        try:
            wanted[key] = entry.item, entry.make(entry.context, entry.item, batch)
        except Exception as error:
            # The error concerns this caller only; the rest of the batch goes on.
            answers[entry] = error
    tally = yield from run_bulk(context, list(wanted.values()))
    for key, (_, settlement) in wanted.items():
        answers[first[key]] = _answer(tally, key, settlement.answer)
    for entry in entries:
        if entry not in answers:
            try:
                answers[entry] = yield from entry.alone()
            except Exception as error:
                answers[entry] = own_error(error)
    return [answers[entry] for entry in entries]


def _answer(tally: BulkResult, key: Any, answer: Any) -> Any:
    """Return the answer for the caller that settles the item with this key."""
    failure = tally.failed.get(key)
    return copies(failure, 1)[0] if failure else answer


def commit(
    context: QueueContext[Any],
    item: Item[Any],
    *,
    payload: Any = KEEP,
    patch: Any = None,
    session: Any = None,
) -> Flow[None]:
    """Settle an item as done; with a payload or a patch, by a command of its own."""
    if not context.broker.group_commit or payload is not KEEP or patch is not None or session is not None:
        return settle.commit(context, item, payload=payload, patch=patch, joined=session is not None)
    return _share_settlement(context, item, make_commit)


def rollback(context: QueueContext[Any], item: Item[Any], *, delay: Duration, error: Any) -> Flow[None]:
    """Hand an item back after a failure; without retries left it is buried at once."""
    if not context.broker.group_commit:
        return settle.rollback(context, item, delay=delay, error=error)
    length = duration(delay, "delay")
    # Called for its check only: it raises when ``error`` is not an error.
    error_document(error, BEGINNING)
    return _share_settlement(context, item, partial(make_rollback, length=length, error=error))


def extend(context: QueueContext[Any], item: Item[Any], *, lease: Duration | None) -> Flow[Any]:
    """Extend the lease to this length from now on, and return its new end."""
    if not context.broker.group_commit:
        return settle.extend(context, item, lease=lease)
    length = None if lease is None else duration(lease, "lease", zero=False)
    return _share_settlement(context, item, partial(make_extension, lease=length))


def move(
    context: QueueContext[Any],
    item: Item[Any],
    to: moves.Destination,
    options: Move,
    *,
    key: str | None = None,
    session: Any = None,
) -> Flow[None]:
    """Hand an item on to another queue; with a key for that queue, by a command of its own."""
    if not context.broker.group_commit or key is not None or session is not None or options.sequence is not None:
        return moves.move(context, item, to, options, key=key, joined=session is not None)
    checked = moves.check_move(context, to, options)
    return _share_settlement(context, item, partial(moves.make_move, checked=checked))
