"""Settlements of a single item: by a command of its own, or by one that concurrent callers share (group commit)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mongoq.model.item import Item, has_place, id_key
from mongoq.protocol.base.fence import LEASE_MARGIN, begin_settle, ends_by
from mongoq.protocol.command import Shared, copies, own_error
from mongoq.protocol.perform import share
from mongoq.protocol.settle.bulk import run_bulk
from mongoq.protocol.settle.in_order import settle_one
from mongoq.protocol.settle.settlement import Batch, Settlement
from mongoq.protocol.state.context import QueueContext

MakeSettlement = Callable[[QueueContext[Any], Item[Any], Batch], Settlement]


@dataclass(slots=True, eq=False)
class _Settling:
    """One caller's part of a batch: an item that is ready to be settled, and the maker of its settlement."""

    context: QueueContext[Any]
    item: Item[Any]
    make: MakeSettlement

    async def alone(self, *, joined: bool = False) -> Any:
        """Settle the item by a command of its own."""
        settlement = self.make(self.context, self.item, Batch(self.context.broker.clock))
        return await settle_one(self.context, self.item, settlement, joined=joined)


async def settle_item(
    context: QueueContext[Any],
    item: Item[Any],
    make: MakeSettlement,
    *,
    joined: bool = False,
    shared: bool = False,
) -> Any:
    """Settle one item, and return the answer for its caller; ``shared``: callers may share a command for it."""
    await begin_settle(context, item)
    settling = _Settling(context, item, make)
    # Near the end of its lease the answer must be exact, so the item goes alone; other callers need not wait for it.
    # So does an item of a sequence, whose settlement may need a transaction.
    if (
        joined
        or not (shared and context.broker.group_commit)
        or has_place(item)
        or ends_by(item, context.state.calm_at + LEASE_MARGIN)
    ):
        return await settling.alone(joined=joined)
    return await share(Shared(("settle", context.name), _settle_for_all, settling))


async def _settle_for_all(entries: list[_Settling]) -> list[Any]:
    """Settle the items of several callers; if two callers settle the same item, the second one is sent by itself."""
    if len(entries) == 1:
        return [(await entries[0].alone())]
    batch = Batch(entries[0].context.broker.clock)
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
    tally = await run_bulk(entries[0].context, list(wanted.values()))
    for key, (_, settlement) in wanted.items():
        failure = tally.failed.get(key)
        answers[first[key]] = copies(failure, 1)[0] if failure else settlement.answer
    for entry in entries:
        if entry not in answers:
            try:
                answers[entry] = await entry.alone()
            except Exception as error:
                answers[entry] = own_error(error)
    return [answers[entry] for entry in entries]
