"""A copy of one processed item with another payload: a form with extended JSON, a preview, and the push."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice, zip_longest
from typing import Annotated, Any, NamedTuple

import bson
from anyio import to_thread
from bson import Int64, ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError, InvalidId
from fastapi import HTTPException, Query, Request, Response

from mongoq.aio import AsyncInspection
from mongoq.data.arguments import queue_name
from mongoq.data.encoding.extended_json import json_text, read_json
from mongoq.data.envelope import has_payload, show_state
from mongoq.data.item import Item
from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.web.guard import grant_of
from mongoq.web.items import replay_history
from mongoq.web.models import ReplayHistory, read_action
from mongoq.web.pages.render import NO_FORM, first_values, read_fields, render, render_message
from mongoq.web.services import Services
from mongoq.web.values import ItemId

MAX_EDITED_CHARACTERS = 500_000
"""Characters of a payload in a form, at most; the API takes longer ones."""
MAX_DIFFERENCES = 100
"""Differences that a preview shows, at most."""
INT32 = range(-(2**31), 2**31)
BYTES: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
KINDS = {1: "double", 2: "string", 3: "object", 4: "array", 5: "binData", 7: "objectId", 8: "bool", 9: "date"}
KINDS |= {10: "null", 11: "regex", 16: "int", 18: "long", 19: "decimal"}
"""Types of BSON by their numbers, as MongoDB spells them."""
MISSING: Any = object()
"""Stands for a field that is not there."""


class NotEditable(Exception):
    """Reason why a form cannot show a payload so that what it sends back has the same types."""


def edit_text(payload: Any) -> str:
    """Return a payload as extended JSON that gives the same BSON when it is read again.

    Raises:
        NotEditable: it is too long for a form, or extended JSON cannot express it.
    """
    text = json_text(_keep_long(payload), indent=2)
    if len(text) > MAX_EDITED_CHARACTERS:
        raise NotEditable(f"its JSON has {len(text):,} characters, and a form takes {MAX_EDITED_CHARACTERS:,} at most")
    try:
        is_same = _encode(read_json(text)) == _encode(payload)
    except (ValueError, BSONError):
        is_same = False
    if not is_same:
        raise NotEditable("JSON would change the types of its values")
    return text


def _keep_long(value: Any) -> Any:
    """Return a value whose small 64-bit numbers are written with their type: plain ones are stored in 32 bits."""
    if isinstance(value, Mapping):
        return {name: _keep_long(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_keep_long(part) for part in value]
    return {"$numberLong": str(int(value))} if isinstance(value, Int64) and int(value) in INT32 else value


def _encode(value: Any) -> bytes:
    return bson.encode({"payload": value}, codec_options=BYTES)


class Difference(NamedTuple):
    """A field of a payload that an edit has changed.

    Attributes:
        path: where it is, such as ``lines[2].city``; empty for the whole payload.
        before: its value; ``MISSING`` for a field that is new.
        after: its value now; ``MISSING`` for one that is gone.
        kind_before: its type in BSON; empty for a field that is new.
        kind_after: its type now; empty for one that is gone.
    """

    path: str
    before: Any
    after: Any
    kind_before: str
    kind_after: str


def find_differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield the fields in which two payloads differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            inner = f"{path}.{name}" if path else name
            yield from find_differences(before.get(name, MISSING), after.get(name, MISSING), inner)
    elif isinstance(before, list) and isinstance(after, list):
        for place, (one, other) in enumerate(zip_longest(before, after, fillvalue=MISSING)):
            yield from find_differences(one, other, f"{path}[{place}]")
    else:
        kinds = _find_kind(before), _find_kind(after)
        if kinds[0] != kinds[1] or (before != after and repr(before) != repr(after)):
            yield Difference(path, before, after, *kinds)


def _find_kind(value: Any) -> str:
    """Return the name of a value's type in BSON; empty for one that is not there."""
    # The number of the type comes behind the length of the document.
    return "" if value is MISSING else KINDS.get(_encode(value)[4], type(value).__name__)


@dataclass(slots=True)
class Edit:
    """An edited copy, as the form has it.

    Attributes:
        text: payload as extended JSON.
        to: queue of the copy; its own queue if it is empty.
        label: name of this replay.
        problems: what is wrong, by the name of the field.
        payload: payload that was read from the text.
    """

    text: str
    to: str = ""
    label: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    payload: Any = None


async def show(services: Services, request: Request, id: Annotated[ItemId, Query()]) -> Response:
    """Show the payload of an item in a form."""
    if grant_of(request.scope).level != "act":
        raise HTTPException(HTTPStatus.FORBIDDEN, "this access is read-only: nothing can be pushed")
    item = await _find(services, id)
    try:
        text = await to_thread.run_sync(edit_text, item.payload)
    except NotEditable as reason:
        detail = f"The payload of item {id} cannot be edited on a page: {reason}. POST /api/history/replay takes it."
        return render_message(request, "Not to be edited here", detail, HTTPStatus.CONFLICT)
    return _render(request, item, Edit(text))


async def push(services: Services, request: Request) -> Response:
    """Check an edited payload and show what will be pushed; push it once the reader has seen that.

    What is wrong is noted beside its field.
    """
    entered = first_values(await read_fields(request))
    try:
        id, edit = ObjectId(entered["id"]), Edit(entered["payload"])
    except (InvalidId, KeyError) as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM) from error
    edit.to, edit.label = entered.get("to", "").strip(), entered.get("label", "").strip()
    item = await _find(services, id)
    is_confirmed = "confirmed" in entered
    try:
        edit.payload = await to_thread.run_sync(read_json, edit.text)
    except ValueError as error:
        edit.problems["payload"] = str(error)
    else:
        if edit.payload is None:
            edit.problems["payload"] = "null is no payload"
    try:
        if edit.to:
            queue_name(edit.to, "to")
        if not edit.problems:
            options = {"label": edit.label, "limit": 1, "dry_run": not is_confirmed, "payload": edit.payload}
            action = read_action(ReplayHistory, queue=item.queue, ids=[id], to=edit.to or None, **options)
            done = await replay_history(services, request, action)
            if done["refusals"]:
                edit.problems["payload"] = done["refusals"][0]["reason"]
            elif done["already"]:
                edit.problems["label"] = "a copy of this item was pushed before; give this replay another name"
            elif not done["number"]:
                raise HTTPException(HTTPStatus.CONFLICT, f"item {id} is not in the history any more")
    except PayloadInvalid as error:
        edit.problems["payload"] = f"{error.path}: {error.problem}"
    except ArgumentInvalid as error:
        edit.problems[error.argument if error.argument in ("label", "to") else "payload"] = error.problem
    if edit.problems:
        return _render(request, item, edit, HTTPStatus.UNPROCESSABLE_ENTITY)
    target = edit.to or item.queue
    if is_confirmed:
        return render_message(request, "Done", f"1 copy with the edited payload was pushed to {target}.")
    differences = islice(find_differences(item.payload, edit.payload), MAX_DIFFERENCES)
    return _render(request, item, edit, differences=await to_thread.run_sync(list, differences), target=target)


async def _find(services: Services, id: ObjectId) -> Item[Any]:
    """Return the processed item with an id.

    Raises:
        HTTPException: there is none.
    """
    item = await services.client.inspect(AsyncInspection.item, id)
    if item is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no item {id}; its time in the history may be over")
    if show_state(item) != "processed" or not has_payload(item) or item.problem:
        detail = f"item {id} is not in the history with its payload: only what was processed is replayed"
        raise HTTPException(HTTPStatus.CONFLICT, detail)
    return item


def _render(request: Request, item: Item[Any], edit: Edit, status: int = HTTPStatus.OK, **preview: Any) -> Response:
    values = {"id": item.id, "queue": item.queue, "edit": edit, "differences": None, "target": None, **preview}
    return render(request, "edit", status, **values)
