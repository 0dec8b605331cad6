"""Changes that forms of pages ask for: a question with the number of items first, then the change.

Each is a call of the API: its dry run asks, and its answer is reported. Time and number of the question bound the
change, because what has come since then was counted by no reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request, Response

from mongoq import BoundedCount
from mongoq.aio import AsyncInspection
from mongoq.data.encoding.extended_json import time_text
from mongoq.web import queues
from mongoq.web.items import replay_history
from mongoq.web.letters import Verb, change_letters, plan_letters
from mongoq.web.models import Action, LetterChoice, ReplayHistory, ReplayLetters, ScheduleAction, read_action
from mongoq.web.pages.render import (
    NO_FORM,
    first_values,
    go_to,
    make_address,
    read_fields,
    render,
    render_message,
    root_of,
    show_count,
)
from mongoq.web.services import COUNT_LIMIT, Document, Services

MOST_DIGITS = 9
"""Digits of a number of items in a form, at most."""
Fields = Mapping[str, Sequence[str]]
Questions = Mapping[str, tuple[str, str, Callable[..., Any]]]
QUEUE_CHANGES: Questions = {
    "pause": ("Stop claims of this queue, {}?", "Pause", queues.pause_queue),
    "resume": ("Let workers claim from this queue, {}?", "Resume", queues.resume_queue),
}
SCHEDULE_CHANGES: Questions = {
    "pause": ("Let {} make no items until it is resumed?", "Pause", queues.pause_schedule),
    "resume": ("Let {} make items again?", "Resume", queues.resume_schedule),
    "run": ("Push an extra item of {} now?", "Push", queues.run_schedule),
    "remove": ("Delete the schedule {}? Its items stay.", "Delete", queues.remove_schedule),
}
"""Question, verb and function of each change."""


async def change_schedule(services: Services, request: Request) -> Response:
    """Carry out what a form of the page of schedules asks for, or ask first."""
    fields = await read_fields(request)
    first = first_values(fields)
    if first.get("action") not in SCHEDULE_CHANGES or "schedule" not in first:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM)
    question, verb, function = SCHEDULE_CHANGES[first["action"]]
    action = read_action(ScheduleAction, schedule=first["schedule"])
    await services.client.inspect(AsyncInspection.schedule, action.schedule)
    if "confirmed" not in first:
        back, target = make_address(root_of(request), "/schedules"), "/schedules/change"
        return _ask(request, fields, question.format(action.schedule), verb, back=back, target=target)
    await function(services, request, action)
    return go_to(request, "/schedules")


async def change(services: Services, request: Request) -> Response:
    """Carry out what a form of another page asks for, or ask first."""
    fields = await read_fields(request)
    first = first_values(fields)
    if "action" not in first or "queue" not in first:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM)
    if first["action"] in QUEUE_CHANGES:
        question, verb, function = QUEUE_CHANGES[first["action"]]
        action = read_action(Action, queue=first["queue"])
        if "confirmed" not in first:
            await services.open_queue(action.queue)
            back = make_address(root_of(request), "/queue", name=action.queue)
            return _ask(request, fields, question.format(action.queue), verb, back=back)
        await function(services, request, action)
        return go_to(request, "/queue", name=action.queue)
    if first["action"] in ("replay", "drop"):
        return await _change_letters(services, request, fields, first)
    if first["action"] == "replay_history":
        return await _replay_history(services, request, fields, first)
    raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"there is no change {first['action']!r:.40}")


async def _change_letters(services: Services, request: Request, fields: Fields, first: Mapping[str, str]) -> Response:
    """Send letters back, or delete them."""
    ids, most = fields.get("id"), first.get("most", "")
    if not ids and "reason" not in first:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "select letters first")
    verb: Verb = "drop" if first["action"] == "drop" else "replay"
    chosen: dict[str, Any] = {name: first.get(name) for name in ("queue", "reason", "error")}
    chosen |= {"ids": ids, "exact": "exact" in first}
    if verb == "replay":
        chosen["to"] = first.get("to", "").strip() or None
    number = int(most) if "confirmed" in first and most.isdecimal() and len(most) <= MOST_DIGITS else 0
    is_agreed = number > 0 and bool(ids or first.get("counted"))
    if is_agreed:
        chosen |= {"limit": min(number, services.max_bulk), "until": None if ids else first["counted"]}
    action = read_action(LetterChoice if verb == "drop" else ReplayLetters, **chosen)
    if is_agreed:
        done = await change_letters(services, request, action, verb)
        went = "were deleted" if verb == "drop" else f"went to {action.target}" if action.target else "went back"
        text = f"{show_count(done['number'])} letters of {done['queue']} {went}.{_describe_rest(done)}"
        return render_message(request, "Done", text)
    plan, releases, more = await plan_letters(services, action, verb)
    counted = BoundedCount(plan["number"], plan["exact"])
    if counted == BoundedCount():
        return render_message(request, "Nothing to change", f"No letter of {plan['queue']} is like that.")
    amount = _describe_count(counted, "letter", "letters")
    where = f"to {action.target}" if action.target else "back to their queues"
    button = f"Delete {amount} for good" if verb == "drop" else f"Send {amount} {where}"
    bounds = {"most": str(counted.number if counted.exact else services.max_bulk), "counted": plan.get("until")}
    names = {"queue": action.queue, "exact": "true" if action.exact else None}
    back = make_address(root_of(request), "/letters", **names)
    options: dict[str, Any] = {"details": {"reason": action.reason, "error": action.error}, "bounds": bounds}
    options |= {"releases": releases, "more": more}
    return _ask(request, fields, f"{button}, {plan['queue']}?", button, back=back, **options)


async def _replay_history(services: Services, request: Request, fields: Fields, first: Mapping[str, str]) -> Response:
    """Push copies of processed items, each once: of one item, or of all that match a filter and a time."""
    ids, is_agreed = fields.get("id"), "confirmed" in first
    chosen = {name: first.get(name, "").strip() or None for name in ("since", "until", "where", "to")}
    options = {"ids": ids, "limit": services.max_bulk, "dry_run": not is_agreed}
    action = read_action(ReplayHistory, queue=first["queue"], **chosen, **options)
    # A time ago would mean another time once the question is read.
    [since] = await services.read_times(action.since)
    done = await replay_history(services, request, action.model_copy(update={"since": since}))
    amount = _describe_count(BoundedCount(done["number"], done["exact"]), "copy", "copies")
    rest = (f" {done['already']:,} were pushed before." if done["already"] else "") + _describe_rest(done)
    if is_agreed:
        return render_message(request, "Done", f"{amount} pushed to {done['to']}.{rest}")
    bounds = {} if ids else {"since": since and time_text(since), "until": done["until"]}
    question = f"Push {amount} of processed items to {done['to']}?{rest}"
    back = make_address(root_of(request), "/queue", name=action.queue)
    return _ask(request, fields, question, "Push", back=back, bounds=bounds, details={"note": done.get("note")})


def _ask(
    request: Request,
    fields: Fields,
    question: str,
    verb: str,
    *,
    back: str,
    bounds: Mapping[str, str | None] | None = None,
    details: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Response:
    """Return the page that asks whether to go on; its form sends ``bounds`` in place of fields with these names."""
    given = {name: value for name, value in (bounds or {}).items() if value is not None}
    kept = [(name, value) for name, many in fields.items() for value in many if name not in ("confirmed", *given)]
    shown = {name: value for name, value in (details or {}).items() if value}
    values = {"question": question, "verb": verb, "fields": [*kept, *given.items()], "back": back, "details": shown}
    return render(request, "confirm", **values, **options)


def _describe_count(counted: BoundedCount, one: str, many: str) -> str:
    """Return a number of items in words; a count that ended at its limit has met at least so many."""
    if not counted.exact and not counted.number:
        return f"{many} that may lie behind the first {COUNT_LIMIT:,} items, where none is,"
    return f"{show_count(counted)} {one if counted == BoundedCount(1) else many}"


def _describe_rest(done: Document) -> str:
    """Return what did not go, in sentences."""
    parts = []
    if done.get("skipped"):
        parts.append(f"{done['skipped']:,} were reserved by a caller, or gone meanwhile.")
    parts += [f"{each['id']} was refused: {each['reason']}." for each in done.get("refusals", ())[:5]]
    if done.get("missing"):
        parts.append(f"{len(done['missing']):,} are not there any more.")
    return "".join(f" {part}" for part in parts)
