"""Calls about dead letters: lists, groups, replay, moves and deletion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from mongoq.errors import ArgumentInvalid
from mongoq.model.copies import Replayed
from mongoq.model.encoding.extended_json import time_text
from mongoq.model.envelope import to_plain
from mongoq.protocol.admin import purge
from mongoq.protocol.history import dead_letters
from mongoq.protocol.history.query import BoundedCount, count_free
from mongoq.protocol.history.query import Query as ItemQuery
from mongoq.protocol.insight import find_dead_queue
from mongoq.web import audit
from mongoq.web.models import (
    Changed,
    ErrorType,
    ItemList,
    LetterChoice,
    LetterGroups,
    MoveLetters,
    Reason,
    ReplayLetters,
    Sent,
    Stage,
)
from mongoq.web.readings import MAX_GROUPS
from mongoq.web.routes.items import LISTED
from mongoq.web.routes.queues import COUNT_LIMIT
from mongoq.web.services import Services
from mongoq.web.values import (
    CursorText,
    ExtendedJsonRoute,
    FilterText,
    Limit,
    QueueName,
    respond,
)

Exact = Annotated[bool, Query(description="The queue itself is the dead queue, whatever it holds.")]


def make_router(services: Services) -> APIRouter:
    """Return the calls about dead letters."""
    router = APIRouter(prefix="/api/letters", tags=["dead letters"], route_class=ExtendedJsonRoute)
    client = services.client

    @router.get("", response_model=ItemList)
    async def list_letters(
        *,
        queue: QueueName,
        where: FilterText = None,
        stage: Stage = None,
        reason: Reason = None,
        error: ErrorType = None,
        exact: Exact = False,
        limit: Limit = LISTED,
        cursor: CursorText = None,
    ) -> Response:
        """Return dead letters, of the queue that they died in or of the dead queue itself."""
        letters = await open_letters(services, queue, exact=exact)
        chosen = select(letters, ids=None, where=where, stage=stage, reason=reason, error=error)
        return await services.respond_with_payloads(services.list_items(letters, with_page(chosen, limit), cursor))

    @router.get("/groups", response_model=LetterGroups)
    async def group_letters(
        *,
        queue: QueueName,
        where: FilterText = None,
        stage: Stage = None,
        reason: Reason = None,
        error: ErrorType = None,
        exact: Exact = False,
    ) -> Response:
        """Return the numbers of dead letters by reason and type of error, with an example of each."""
        letters = await open_letters(services, queue, exact=exact)
        chosen = select(letters, ids=None, where=where, stage=stage, reason=reason, error=error)
        groups, more = await client.read(
            dead_letters.group_letters, chosen, handle=letters, limit=COUNT_LIMIT, groups=MAX_GROUPS
        )
        return respond({"queue": letters.name, "groups": [to_plain(asdict(group)) for group in groups], "more": more})

    @router.post("/replay", response_model=Sent)
    async def replay_letters(request: Request, action: ReplayLetters) -> Response:
        """Send dead letters back to the queues that they died in, or to another queue; each goes once."""
        return respond(await send_letters(services, request, action, "replay", to=action.to))

    @router.post("/move", response_model=Sent)
    async def move_letters(request: Request, action: MoveLetters) -> Response:
        """Move dead letters to another queue, without their keys and with all their attempts again."""
        return respond(await send_letters(services, request, action, "move", to=action.to))

    @router.post("/drop", response_model=Changed)
    async def drop_letters(request: Request, action: LetterChoice) -> Response:
        """Delete dead letters for good; letters that a caller has reserved stay."""
        limit = services.check_limit(action.limit)
        letters = await open_letters(services, action.queue, exact=action.exact)
        [until] = await services.read_times(action.until)
        if action.dry_run:
            return respond(await _count(services, letters, action, until, limit, releases=True))
        chosen = {**action.filters, "until": until}
        number = await client.call(letters._run, purge, None, **chosen, limit=limit)
        audit.record(request, "drop letters", letters.name, number, **audit.show_filter(chosen))
        return respond({"queue": letters.name, "dry_run": False, "number": number, "exact": True})

    return router


async def open_letters(services: Services, queue: str, *, exact: bool = False) -> Any:
    """Return the handle of the dead queue that a name stands for."""
    name, letters_of = await services.client.read(find_dead_queue, queue, exact=exact)
    return (await services.client.open()).dead_queue(name)._with(letters_of=letters_of)


def select(letters: Any, **filters: Any) -> Any:
    """Return a selection of letters, checked."""
    return dead_letters.selection(letters._context, **filters)


def with_page(chosen: ItemQuery, limit: int) -> ItemQuery:
    """Return a range with a page of this size."""
    return replace(chosen, page=limit)


async def send_letters(
    services: Services, request: Request, action: LetterChoice, verb: str, *, to: str | None
) -> dict[str, Any]:
    """Send letters back or elsewhere, or count them, and return the answer."""
    limit = services.check_limit(action.limit)
    letters = await open_letters(services, action.queue, exact=action.exact)
    [until] = await services.read_times(action.until)
    if action.dry_run:
        if to == letters.name:
            raise ArgumentInvalid("to", f"{to!r} is the dead queue itself")
        return {**await _count(services, letters, action, until, limit, releases=to is not None), "to": to}
    chosen = {**action.filters, "until": until}
    done = await hand_back(services, letters, chosen, limit=limit, to=to)
    audit.record(request, f"{verb} letters", letters.name, done.pushed, to=to, **audit.show_filter(chosen))
    return make_result(done, letters.name, to)


async def hand_back(
    services: Services, letters: Any, chosen: Mapping[str, Any], *, limit: int, to: str | None
) -> Replayed:
    """Send the chosen letters back, or to another queue."""
    selected = select(letters, **chosen)
    done: Replayed = await services.client.call(
        letters._run, dead_letters.revive, selected, to=to, hop=None, limit=limit
    )
    return done


async def _count(
    services: Services, letters: Any, action: LetterChoice, until: datetime | None, limit: int, *, releases: bool
) -> dict[str, Any]:
    """Return the answer to a dry run; with ``releases`` also the sequences that go on without the letters."""
    [now] = await services.read_times(timedelta(0))
    chosen = select(letters, **action.filters, until=until)
    counted = await count_letters(services, letters, chosen, limit)
    result = {"queue": letters.name, "dry_run": True, "number": counted.number, "exact": counted.exact}
    if action.ids is None:
        result["until"] = time_text(until or now)
    if releases:
        found, _ = await services.client.read(dead_letters.find_releases, chosen, handle=letters)
        result["releases"] = [to_plain({**asdict(each), "items": each.items.number}) for each in found]
    return result


async def count_letters(services: Services, letters: Any, chosen: Any, limit: int) -> BoundedCount:
    """Count letters before a change that concerns ``limit`` of them at most."""
    counted: BoundedCount = await services.client.read(count_free, chosen, handle=letters, limit=COUNT_LIMIT)
    return BoundedCount(limit) if counted.number >= limit else counted


def make_result(done: Replayed, queue: str, to: str | None, *, is_dry: bool = False) -> dict[str, Any]:
    """Return the answer to a replay."""
    counts = {name: getattr(done, name) for name in ("already", "skipped", "refused")}
    refusals = [{"id": str(id), "reason": reason} for id, reason in done.refusals]
    result = {"queue": queue, "to": to, "dry_run": is_dry, "number": done.pushed, "exact": True, **counts}
    return {**result, "refusals": refusals, "missing": list(map(str, done.missing))}
