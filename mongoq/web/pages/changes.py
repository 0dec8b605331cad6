"""Changes that forms of pages ask for: a question with the number of items first, then the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from bson import ObjectId
from bson.errors import InvalidId
from fastapi import APIRouter, HTTPException, Request, Response

from mongoq.errors import ArgumentInvalid, MongoqError
from mongoq.model.arguments import queue_name
from mongoq.model.clock import MILLISECOND
from mongoq.model.copies import Replayed
from mongoq.model.encoding.extended_json import read_time, time_text
from mongoq.protocol.admin import purge
from mongoq.protocol.history import dead_letters
from mongoq.protocol.history.query import BoundedCount
from mongoq.web import audit
from mongoq.web.pages.forms import NO_FORM, first_values, go_to, read_fields
from mongoq.web.pages.render import Renderer, make_address, root_of, show_count
from mongoq.web.readings import LetterReadings
from mongoq.web.routes.history import count_matches
from mongoq.web.routes.letters import count_letters, hand_back, open_letters, select
from mongoq.web.routes.queues import COUNT_LIMIT
from mongoq.web.services import Services
from mongoq.web.values import read_filter

MOST_DIGITS = 9
"""Digits of a number of items in a form, at most."""
LETTER_VERBS = {"replay": "Send {} {}", "drop": "Delete {} for good"}
QUEUE_VERBS = {"pause": "Stop claims of this queue", "resume": "Let workers claim from this queue"}


@dataclass(frozen=True, slots=True)
class Form:
    """Fields of a form.

    Attributes:
        action: name of the change.
        queue: name of the queue.
        ids: selected items.
        reason: reason of the selected letters.
        error: type of error of the selected letters.
        where: filter on the payloads of processed items.
        since: first time of processed items, as text.
        until: end of their time, as text.
        to: queue that copies go to; the same queue if it is empty.
        exact: True if the queue itself holds the letters: the error queue of a pipeline.
        confirmed: True if the reader has seen the number of items.
        counted: time at which they were counted, as text; empty before.
        most: number that the reader has seen, which is the limit of the change; 0 before.
        fields: all fields, to send them again.
    """

    action: str
    queue: str
    ids: list[ObjectId]
    reason: str | None
    error: str | None
    where: str
    since: str
    until: str
    to: str
    exact: bool
    confirmed: bool
    counted: str
    most: int
    fields: list[tuple[str, str]]

    @property
    def filters(self) -> dict[str, Any]:
        """Arguments that select letters."""
        return {"ids": self.ids or None, "where": None, "stage": None, "reason": self.reason, "error": self.error}


async def read_form(request: Request) -> Form:
    """Return the fields of a form, checked.

    Raises:
        HTTPException: it is no form, or a field of it cannot be used.
        QueueNameInvalid: no queue can have this name.
    """
    values = await read_fields(request)
    try:
        ids = [ObjectId(id) for id in values.get("id", ())]
        action, queue = values["action"][0], values["queue"][0]
    except (InvalidId, KeyError) as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM) from error
    first = first_values(values)
    most = first.get("most", "")
    return Form(
        action=action,
        queue=queue_name(queue),
        ids=ids,
        reason=first.get("reason"),
        error=first.get("error"),
        where=first.get("where", "").strip(),
        since=first.get("since", "").strip(),
        until=first.get("until", "").strip(),
        to=first.get("to", "").strip(),
        exact="exact" in first,
        confirmed="confirmed" in first,
        counted=first.get("counted", ""),
        most=int(most) if most.isdecimal() and len(most) <= MOST_DIGITS else 0,
        fields=[(name, value) for name, many in values.items() for value in many],
    )


def make_router(services: Services, renderer: Renderer, letters: LetterReadings) -> APIRouter:
    """Return the call that forms are sent to."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/change", _Changes(services, renderer, letters).change, methods=["POST"])
    return router


class _Changes:
    """Asks before a change, carries it out, and reports what it did."""

    def __init__(self, services: Services, renderer: Renderer, letters: LetterReadings) -> None:
        self._letters = letters
        self._services = services
        self._client = services.client
        self._renderer = renderer

    async def change(self, request: Request) -> Response:
        """Carry out what a form asks for, or ask first."""
        form = await read_form(request)
        try:
            return await self._carry_out(request, form)
        except ValueError as error:
            if isinstance(error, MongoqError):
                raise
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error  # a time or a filter

    async def _carry_out(self, request: Request, form: Form) -> Response:
        if form.action in QUEUE_VERBS:
            return await self._change_queue(request, form)
        if form.action in LETTER_VERBS:
            return await self._change_letters(request, form)
        if form.action == "replay_history":
            return await self._replay_history(request, form)
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"there is no change {form.action!r:.40}")

    async def _change_queue(self, request: Request, form: Form) -> Response:
        """Stop or resume claims of a queue."""
        handle = await self._services.open_queue(form.queue)
        if not form.confirmed:
            question = f"{QUEUE_VERBS[form.action]}, {form.queue}?"
            return self._ask(request, form, question, form.action.capitalize(), "/queue")
        await self._client.call(handle.pause if form.action == "pause" else handle.resume)
        audit.record(request, form.action, form.queue)
        return go_to(request, "/queue", name=form.queue)

    async def _change_letters(self, request: Request, form: Form) -> Response:
        """Send letters back, or delete them."""
        letters = await open_letters(self._services, form.queue, exact=form.exact)
        if not form.ids and form.reason is None:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "select letters first")
        to = queue_name(form.to, "to") if form.to and form.action == "replay" else None
        if to == letters.name:
            raise ArgumentInvalid("to", f"{to!r} is the dead queue itself")
        # A letter that has come since the question was counted by no reader: time and number bound the change.
        is_counted = form.confirmed and form.most and (form.ids or form.counted)
        counted = read_time(form.counted) if is_counted and not form.ids else None
        until, now = await self._services.read_times(counted, timedelta(0))
        chosen = {**form.filters, "until": until}
        if not is_counted:
            return await self._ask_about_letters(request, form, letters, now, chosen)
        most = min(form.most, self._services.max_bulk)
        shown = audit.show_filter(chosen)
        if form.action == "drop":
            deleted = await self._client.call(letters._run, purge, None, **chosen, limit=most)
            self._letters.forget(letters.name)
            audit.record(request, "drop letters", letters.name, deleted, **shown)
            return self._report(request, f"{show_count(deleted)} letters of {letters.name} were deleted.")
        done = await hand_back(self._services, letters, chosen, limit=most, to=to)
        self._letters.forget(letters.name)
        audit.record(request, "replay letters", letters.name, done.pushed, to=to, **shown)
        where = "back" if to is None else f"to {to}"
        return self._report(request, f"{show_count(done.pushed)} letters of {letters.name} went {where}.{_rest(done)}")

    async def _ask_about_letters(
        self, request: Request, form: Form, letters: Any, now: datetime, chosen: dict[str, Any]
    ) -> Response:
        """Ask before a change of letters: with their number, what chooses them, and what runs without them."""
        selected = select(letters, **chosen)
        counted = await count_letters(self._services, letters, selected, self._services.max_bulk)
        if counted == BoundedCount():
            return self._renderer.message(request, "Nothing to change", f"No letter of {letters.name} is like that.")
        details = [(name, value) for name, value in (("reason", form.reason), ("error", form.error)) if value]
        releases: tuple[list[dead_letters.ReleasedSequence], int] = ([], 0)
        if form.action == "drop" or form.to:
            releases = await self._client.read(dead_letters.find_releases, selected, handle=letters)
        where = f"to {form.to}" if form.to else "back to their queues"
        verb = LETTER_VERBS[form.action].format(_describe(counted, "letter", "letters"), where)
        most = counted.number if counted.exact else self._services.max_bulk
        bounds = [("counted", time_text(now)), ("most", str(most))]
        options: dict[str, Any] = {"details": details, "releases": releases[0], "more": releases[1]}
        return self._ask(request, form, f"{verb}, {letters.name}?", verb, "/letters", bounds=bounds, **options)

    async def _replay_history(self, request: Request, form: Form) -> Response:
        """Push copies of processed items, each once: of one item, or of all that match a filter and a time."""
        handle = await self._services.open_queue(form.queue)
        target = queue_name(form.to, "to") if form.to else form.queue
        since, until, now = await self._services.read_times(
            *(read_time(text) if text else None for text in (form.since, form.until)), timedelta(0)
        )
        chosen: dict[str, Any] = {"ids": form.ids or None, "since": since, "until": until}
        chosen["where"] = read_filter(form.where)
        options = {"to": target, "limit": self._services.max_bulk, "dry_run": not form.confirmed}
        counted = None
        if not form.confirmed:
            counted = await count_matches(self._services, handle, limit=self._services.max_bulk, **chosen)
        # A dry run examines all that the time covers; where that is too much, the count has to do.
        done = Replayed() if counted is not None else await self._client.call(handle.replay, **chosen, **options)
        amount = _describe(counted or BoundedCount(done.pushed), "copy", "copies")
        before = f" {done.already:,} were pushed before." if done.already else ""
        if form.confirmed:
            audit.record(request, "replay", form.queue, done.pushed, to=target, **audit.show_filter(chosen))
            return self._report(request, f"{amount} pushed to {target}.{before}{_rest(done)}")
        # A time ago would mean another time once the question is read, and no end what comes meanwhile as well.
        times = {} if form.ids else {"since": since, "until": until or now + MILLISECOND}
        bounds = [(name, time_text(value)) for name, value in times.items() if value is not None]
        question = f"Push {amount} of processed items to {target}?{before}{_rest(done)}"
        notes = {} if counted or done.found else await self._services.explain_no_history(handle)
        return self._ask(request, form, question, "Push", "/queue", bounds=bounds, details=list(notes.items()))

    def _ask(
        self,
        request: Request,
        form: Form,
        question: str,
        verb: str,
        back: str,
        *,
        bounds: Sequence[tuple[str, str]] = (),
        **details: Any,
    ) -> Response:
        """Return the page that asks whether to go on; its form sends ``bounds`` in place of fields with these names."""
        replaced = {"confirmed", *(name for name, _ in bounds)}
        fields = [*(pair for pair in form.fields if pair[0] not in replaced), *bounds]
        exact = "true" if form.exact else None
        names = {"name": form.queue} if back == "/queue" else {"queue": form.queue, "exact": exact}
        address = make_address(root_of(request), back, **names)
        values = {"question": question, "verb": verb, "fields": fields, "back": address, **details}
        return self._renderer.page(request, "confirm", **values)

    def _report(self, request: Request, text: str) -> Response:
        """Return the page that says what was done."""
        return self._renderer.message(request, "Done", text)


def _describe(counted: BoundedCount, one: str, many: str) -> str:
    """Return a number of items in words; a count that ended at its limit has met at least so many."""
    if not counted.exact and not counted.number:
        return f"{many} that may lie behind the first {COUNT_LIMIT:,} items, where none is,"
    return f"{show_count(counted)} {one if counted == BoundedCount(1) else many}"


def _rest(done: Replayed) -> str:
    """Return what did not go, in sentences."""
    parts = []
    if done.skipped:
        parts.append(f"{done.skipped:,} were reserved by a caller, or gone meanwhile.")
    parts += [f"{id} was refused: {reason}." for id, reason in done.refusals[:5]]
    if done.missing:
        parts.append(f"{len(done.missing):,} are not there any more.")
    return "".join(f" {part}" for part in parts)
