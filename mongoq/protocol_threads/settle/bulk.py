# Generated from mongoq/protocol/settle/bulk.py by scripts/unasync.py. Do not edit.
"""Bulks: the fenced updates and deletes of many items in few commands, and the result for each item.

The server answers a bulk with totals only. When fewer items were found than were sent, the stored documents tell which.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from mongoq.errors import ArgumentInvalid, ReservationLost
from mongoq.model.item import id_key
from mongoq.protocol.base.fence import LEASE_MARGIN, ends_by, make_lost_error, may_be_new
from mongoq.protocol.base.statements import MAX_STATEMENTS, number_found
from mongoq.protocol.command import Command, Interruption, PartlyRefused, Refused, ReplyLost, chunks, finish, own_error
from mongoq.protocol.settle.bulk import (
    MAX_TRANSACTION_ITEMS,
    BulkResult,
    _list_wanted,
    _number,
    _reconcile,
    _record_done,
)
from mongoq.protocol.settle.in_order import InOrder, is_in_order, record_in_order
from mongoq.protocol.settle.settlement import Group, Wanted, group_by_statement, patch_misfit_error
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.retry import retry_and_report
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.settle.exchange import Exchange, run_exchange
from mongoq.protocol_threads.settle.in_order import get_ready_to_enter, settle_one, settle_within
from mongoq.protocol_threads.settle.settlement import read_states


def settle_bulk(context: QueueContext[Any], wanted: Sequence[Wanted]) -> None:
    """Settle items.

    All are tried; then one ``BatchIncomplete`` names the failed items. Each command is safe to send again, and is sent
    until there is a reply, ``SENDS`` times at most. An error of the driver that concerns no single item ends the bulk.
    """
    tally = run_bulk(context, wanted)
    # An id that is not hashable (written by another program) is named by its text.
    ids = {id_key(item.id): item.id for item, _ in wanted} if tally.failed else {}
    failed = {ids[key] if isinstance(ids[key], Hashable) else key: error for key, error in tally.failed.items()}
    finish(context.name, tally.done, failed)


def run_bulk(context: QueueContext[Any], wanted: Sequence[Wanted]) -> BulkResult:
    """Settle items, and return the result of each item without raising."""
    soon = context.broker.clock.now() + LEASE_MARGIN
    tally = BulkResult()
    in_order: list[Wanted] = []
    alone: list[Wanted] = []
    together: list[Wanted] = []
    for pair in wanted:
        if is_in_order(*pair):
            in_order.append(pair)
        # Near the end of a lease another consumer may claim the item meanwhile, and a total does not tell which one.
        elif context.broker.serverless or ends_by(pair[0], soon):
            alone.append(pair)
        else:
            together.append(pair)
    _run_bulk(context, list(group_by_statement(together)), alone, tally)
    if in_order:
        _run_in_order(context, in_order, tally)
    return tally


def _run_in_order(context: QueueContext[Any], wanted: Sequence[Wanted], tally: BulkResult) -> None:
    """Settle items of sequences, many in one transaction; one with a patch has a transaction of its own.

    A crash before a commit leaves its items reserved to the ends of their leases; after it, the next ones have
    followed.
    """
    try:
        get_ready_to_enter(context, wanted, joined=False)
    except Exception as error:
        tally.failed |= {id_key(item.id): own_error(error) for item, _ in wanted}
        return

    def record(result: InOrder) -> None:
        tally.done += [item.id for item, _ in result[0]]
        record_in_order(context, result)

    exchange = Exchange(context, partial(settle_within, context), itemgetter(0), record)
    shared = [pair for pair in wanted if pair[1].patch is None]
    for chunk in chunks(shared, lambda pair: pair[1].size, most=MAX_TRANSACTION_ITEMS):
        tally.failed |= run_exchange(exchange, chunk)
    _settle_alone(context, [pair for pair in wanted if pair[1].patch is not None], tally)


def _run_bulk(context: QueueContext[Any], groups: list[Group], alone: Iterable[Wanted], tally: BulkResult) -> None:
    """Settle groups of items in bulks, and then items that need a command each."""
    try:
        rest = list(alone)
        for bulk in chunks(groups, lambda group: group.settlement.size, items=_number, most=MAX_STATEMENTS):
            rest += _send_bulk(context, bulk, tally)
        _settle_alone(context, rest, tally)
    except Exception as error:
        resolved = {*map(id_key, tally.done), *tally.failed}
        every = [*_list_wanted(groups), *alone]
        tally.failed |= {key: own_error(error) for item, _ in every if (key := id_key(item.id)) not in resolved}


def _settle_alone(context: QueueContext[Any], wanted: Iterable[Wanted], tally: BulkResult) -> None:
    for item, settlement in wanted:
        try:
            settle_one(context, item, settlement)
            tally.done.append(item.id)
        except (Interruption, ReservationLost, ArgumentInvalid) as error:
            tally.failed[id_key(item.id)] = own_error(error)


def _send_bulk(context: QueueContext[Any], bulk: list[Group], tally: BulkResult) -> list[Wanted]:
    """Send one bulk, and return the items that have to be settled alone: the command has left them as they were."""
    requests = [group.statement() for group in bulk]
    command = Command("bulk_write", {"requests": requests, "ordered": False}, number_found)
    command.resolved = any(kind != "DeleteOne" for kind, _ in requests)  # those the driver can send again

    def send() -> tuple[Mapping[int, Exception], int]:
        try:
            return {}, (perform(command))
        except PartlyRefused as refused:
            return refused.refusals, refused.total

    try:
        (refusals, total), again = retry_and_report(send)
    except ReplyLost as reply:
        tally.failed |= {id_key(id): reply.cause for group in bulk for id in group.ids}
        return []
    groups = [group for place, group in enumerate(bulk) if place not in refusals]
    rest: list[Wanted] = []
    if total == sum(map(_number, groups)):
        _record_done(context, groups, tally)
    else:
        rest = _resolve_by_reading(context, _list_wanted(groups), None if again else total, tally)
    halfway: list[Group] = []
    for place, error in refusals.items():
        group = bulk[place]
        if len(group.items) > 1:
            halfway.append(group)
        elif group.settlement.patch is not None and isinstance(error, Refused):
            tally.failed[id_key(group.ids[0])] = patch_misfit_error(error)
        else:
            tally.failed[id_key(group.ids[0])] = own_error(error)
    if halfway:
        rest += _resolve_by_reading(context, _list_wanted(halfway), None, tally, refused=True)
    return rest


def _resolve_by_reading(
    context: QueueContext[Any], wanted: list[Wanted], total: int | None, tally: BulkResult, *, refused: bool = False
) -> list[Wanted]:
    """Read which items were settled, and return those to be settled alone: held, and ``refused`` or without room.

    ``total`` is the number of settled items, or ``None`` when it is unknown, as after a lost reply.

    The server keeps no record of a statement of many. After a lost reply, an item deleted by us and an item settled by
    another holder look alike: both are gone, and stay uncertain.
    """
    states = read_states(context.broker, [item.id for item, _ in wanted])
    verdicts: dict[Any, bool | None] = {}
    alone: list[Wanted] = []
    likely = 0
    for item, settlement in wanted:
        key = id_key(item.id)
        document = states.get(key)
        verdict = None if document is None else settlement.has_happened(item, document)
        is_held = document is not None and document.get("token") == item.token
        if is_held and (refused or settlement.patch is not None):
            alone.append((item, settlement))
            continue
        likely += verdict is True
        # A push of the same key may have written the document that looks as if the item had been settled.
        verdicts[key] = None if verdict and document is not None and may_be_new(document, item) else verdict
    if total is not None:
        _reconcile(verdicts, total, likely, is_proof=all(settlement.is_proof for _, settlement in wanted))
    for item, settlement in wanted:
        key = id_key(item.id)
        if key not in verdicts:
            continue
        if verdicts[key]:
            _record_done(context, [Group(settlement, [item], [item.id])], tally)
        elif verdicts[key] is None:
            tally.failed[key] = ReservationLost(item.id, item.queue, certain=False)
        else:
            tally.failed[key] = make_lost_error(context, item, states.get(key))
    return alone
