"""Calls about dead letters: lists, groups, replay, moves and deletion; and the dead set of Ziggurat.

The dead set has the calls that users of Ziggurat know, on the dead letters of mongoq: ``topic-entity`` is the name of a
queue; with a ``channel`` it is ``topic-entity.channel``. The calls take ``count`` letters, the first ones. Source:
https://github.com/gojek/ziggurat, "Retries and queues".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from mongoq import BoundedCount, ReleasedSequence
from mongoq.data.copies import Replayed
from mongoq.data.encoding.extended_json import time_text
from mongoq.data.envelope import to_plain
from mongoq.errors import ArgumentInvalid, QueueUnknown
from mongoq.web.items import make_replayed
from mongoq.web.models import ErrorType, LetterChoice, MoveLetters, Reason, ReplayLetters, Stage, read_action
from mongoq.web.services import (
    COUNT_LIMIT,
    LISTED,
    Document,
    Services,
    make_changed,
    record_change,
    respond,
    show_filter,
)
from mongoq.web.values import MAX_LISTED, CursorText, FilterText, Limit, QueueName

Exact = Annotated[bool, Query(description="The queue itself is the dead queue, whatever it holds.")]
Verb = Literal["replay", "move", "drop"]
MAX_GROUPS = 100
"""Groups of dead letters, at most."""
MISTAKE = "count is to be a positive whole number, and topic-entity the name of a queue"


async def list_letters(
    services: Services,
    *,
    queue: QueueName,
    where: FilterText = None,
    stage: Stage = None,
    reason: Reason = None,
    error: ErrorType = None,
    exact: Exact = False,
    limit: Limit = LISTED,
    cursor: CursorText = None,
) -> Document:
    """Return dead letters, of the queue that they died in or of the dead queue itself."""
    letters = await services.open_letters(queue, exact=exact)
    selected = letters.select(where=where, stage=stage, reason=reason, error=error)
    return await services.list_items(selected, limit, cursor)


async def group_letters(
    services: Services,
    *,
    queue: QueueName,
    where: FilterText = None,
    stage: Stage = None,
    reason: Reason = None,
    error: ErrorType = None,
    exact: Exact = False,
) -> Document:
    """Return the numbers of dead letters by reason and type of error, with an example of each."""
    letters = await services.open_letters(queue, exact=exact)
    selected = letters.select(where=where, stage=stage, reason=reason, error=error)
    groups, more = await services.client.read(selected.groups, limit=COUNT_LIMIT, groups=MAX_GROUPS)
    return {"queue": letters.name, "groups": [to_plain(asdict(group)) for group in groups], "more": more}


async def replay_letters(services: Services, request: Request, action: ReplayLetters) -> Document:
    """Send dead letters back to the queues that they died in, or to another queue; each goes once."""
    return await change_letters(services, request, action, "replay")


async def move_letters(services: Services, request: Request, action: MoveLetters) -> Document:
    """Move dead letters to another queue, without their keys and with all their attempts again."""
    return await change_letters(services, request, action, "move")


async def drop_letters(services: Services, request: Request, action: LetterChoice) -> Document:
    """Delete dead letters for good; letters that a caller has reserved stay."""
    return await change_letters(services, request, action, "drop")


async def change_letters(services: Services, request: Request, action: LetterChoice, verb: Verb) -> Document:
    """Replay, move or delete letters, or say what that would do."""
    if action.dry_run:
        document, _, _ = await plan_letters(services, action, verb)
        return document
    limit = services.check_limit(action.limit)
    letters = await services.open_letters(action.queue, exact=action.exact)
    [until] = await services.read_times(action.until)
    chosen = {**action.filters, "as_of": until, "limit": limit}
    if verb == "drop":
        number = await services.client.call(letters.purge, **chosen)
        result = make_changed(letters.name, number)
    else:
        done: Replayed = await services.client.call(letters.replay, **chosen, to=action.target)
        number, result = done.pushed, make_replayed(done, letters.name, action.target)
    services.letters.forget(letters.name)
    shown = {"to": action.target, **show_filter({**chosen, "until": until})}
    record_change(request, f"{verb} letters", letters.name, number, **shown)
    return result


async def plan_letters(
    services: Services, action: LetterChoice, verb: Verb
) -> tuple[Document, list[ReleasedSequence], int]:
    """Count the letters of a change, and find what else it would do.

    Returns the answer to a dry run, the first sequences that go on without the letters which hold them, and how many
    more may do so.
    """
    limit = services.check_limit(action.limit)
    letters = await services.open_letters(action.queue, exact=action.exact)
    until, now = await services.read_times(action.until, timedelta(0))
    if action.target == letters.name:
        raise ArgumentInvalid("to", f"{action.target!r} is the dead queue itself")
    selected = letters.select(**action.filters, as_of=until)
    counted: BoundedCount = await services.client.read(selected.count, COUNT_LIMIT, free=True)
    number, exact = (limit, True) if counted.number >= limit else (counted.number, counted.exact)
    document = make_changed(letters.name, number, dry_run=True, exact=exact)
    if verb != "drop":
        document["to"] = action.target
    if action.ids is None:
        document["until"] = time_text(until or now)
    releases: list[ReleasedSequence] = []
    more = 0
    if verb == "drop" or action.target is not None:
        releases, more = await services.client.read(selected.releases)
        document["releases"] = [to_plain({**asdict(each), "items": each.items.number}) for each in releases]
    return document, releases, more


# --- the dead set of Ziggurat -------------------------------------------------------------------


async def view_dead_set(services: Services, request: Request) -> Document | Response:
    """Return the payloads of the first dead letters; of large ones as many as 16 MB hold."""

    async def view(name: str, count: int) -> Document:
        # One reply of the server, 16 MB at most: a thousand large letters would not fit into memory.
        found = await list_letters(services, queue=name, limit=count)
        return {"messages": [letter.get("payload") for letter in found["items"]]}

    return await _answer_ziggurat(request, view, MAX_LISTED)


async def replay_dead_set(services: Services, request: Request) -> Document | Response:
    """Send the first dead letters back to the queues that they died in."""

    async def replay(name: str, count: int) -> Document:
        action = read_action(ReplayLetters, queue=name, limit=count)
        done = await change_letters(services, request, action, "replay")
        return {"message": f"sent {done['number']} messages back for another try"}

    return await _answer_ziggurat(request, replay, services.max_bulk)


async def delete_dead_set(services: Services, request: Request) -> Document | Response:
    """Delete the first dead letters."""

    async def delete(name: str, count: int) -> Document:
        done = await change_letters(services, request, read_action(LetterChoice, queue=name, limit=count), "drop")
        return {"message": f"deleted {done['number']} messages"}

    return await _answer_ziggurat(request, delete, services.max_bulk)


async def _answer_ziggurat(
    request: Request, call: Callable[[str, int], Awaitable[Document]], most: int
) -> Document | Response:
    """Answer a call with the name of a queue and the number of letters; a mistake as the users of Ziggurat know it.

    The parameters are in the address or in the body; ``topic_entity`` is ``topic-entity``.
    """
    body = await request.json() if await request.body() else {}
    given = {**request.query_params, **(body if isinstance(body, dict) else {})}
    parameters: dict[str, Any] = {name.replace("_", "-"): value for name, value in given.items()}
    try:
        count = int(str(parameters.get("count", "")))
    except ValueError:
        count = 0
    entity, channel = parameters.get("topic-entity"), parameters.get("channel")
    if not 0 < count <= most or not isinstance(entity, str) or not entity or not isinstance(channel, str | None):
        return respond({"error": MISTAKE}, HTTPStatus.BAD_REQUEST)
    try:
        return await call(f"{entity}.{channel}" if channel else entity, count)
    except QueueUnknown as error:
        return respond({"error": str(error)}, HTTPStatus.NOT_FOUND)
