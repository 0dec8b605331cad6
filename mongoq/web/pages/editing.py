"""A copy of one processed item with another payload: a form with extended JSON, a preview, and the push."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import bson
from anyio import to_thread
from bson import Binary, Decimal128, Int64, ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError, InvalidId
from fastapi import APIRouter, HTTPException, Query, Request, Response

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import queue_name
from mongoq.model.copies import Replayed
from mongoq.model.encoding.extended_json import json_text, read_json
from mongoq.model.envelope import has_payload, show_state
from mongoq.model.item import Item
from mongoq.protocol.insight import find_item
from mongoq.web import audit
from mongoq.web.guard import grant_of
from mongoq.web.pages.forms import NO_FORM, first_values, read_fields
from mongoq.web.pages.render import Renderer
from mongoq.web.services import Services
from mongoq.web.values import ItemId

MAX_EDITED_CHARACTERS = 500_000
"""Characters of a payload in a form, at most; the API takes longer ones."""
MAX_DIFFERENCES = 100
"""Differences that a preview shows, at most."""
INT32 = range(-(2**31), 2**31)
BYTES: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    (str, "string"),
    (Int64, "long"),
    (float, "double"),
    (datetime, "date"),
    (ObjectId, "objectId"),
    (Decimal128, "decimal"),
    ((bytes, Binary, UUID), "binData"),
    (Mapping, "object"),
    (list, "array"),
)
"""Names of BSON types, as MongoDB spells them; the first that fits."""


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
        before: its value; ``None`` for a field that is new.
        after: its value now; ``None`` for one that is gone.
        kind_before: its type in BSON; empty for a field that is new.
        kind_after: its type now; empty for one that is gone.
    """

    path: str
    before: Any
    after: Any
    kind_before: str
    kind_after: str

    @property
    def is_other_type(self) -> bool:
        """True if a value has another type now, which a handler may not expect."""
        return bool(self.kind_before and self.kind_after) and self.kind_before != self.kind_after


def find_differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield the fields in which two payloads differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            inner = f"{path}.{name}" if path else name
            yield from _compare_field(before, after, name, inner)
    elif isinstance(before, list) and isinstance(after, list):
        parts = [dict(enumerate(before)), dict(enumerate(after))]
        for place in range(max(len(before), len(after))):
            yield from _compare_field(parts[0], parts[1], place, f"{path}[{place}]")
    elif kind_of(before) != kind_of(after) or (before != after and repr(before) != repr(after)):
        yield Difference(path, before, after, kind_of(before), kind_of(after))


def _compare_field(before: Mapping[Any, Any], after: Mapping[Any, Any], name: Any, path: str) -> Iterator[Difference]:
    if name not in after:
        yield Difference(path, before[name], None, kind_of(before[name]), "")
    elif name not in before:
        yield Difference(path, None, after[name], "", kind_of(after[name]))
    else:
        yield from find_differences(before[name], after[name], path)


def kind_of(value: Any) -> str:
    """Return the name of a value's type in BSON."""
    if value is None:
        return "null"
    if type(value) is int:
        return "int" if value in INT32 else "long"
    return next((name for types, name in KINDS if isinstance(value, types)), type(value).__name__)


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


def make_router(services: Services, renderer: Renderer) -> APIRouter:
    """Return the page of the editor, and the call that its forms are sent to."""
    editor = _Editor(services, renderer)
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/edit", editor.show, methods=["GET"])
    router.add_api_route("/edit", editor.push, methods=["POST"])
    return router


class _Editor:
    """Shows the payload of a processed item in a form, checks what comes back, and pushes the copy."""

    def __init__(self, services: Services, renderer: Renderer) -> None:
        self._services = services
        self._client = services.client
        self._renderer = renderer

    async def show(self, request: Request, id: Annotated[ItemId, Query()]) -> Response:
        """Show the payload of an item in a form."""
        if grant_of(request.scope).level != "act":
            raise HTTPException(HTTPStatus.FORBIDDEN, "this access is read-only: nothing can be pushed")
        item = await self._find(id)
        try:
            text = await to_thread.run_sync(edit_text, item.payload)
        except NotEditable as reason:
            detail = (
                f"The payload of item {id} cannot be edited on a page: {reason}. POST /api/history/replay takes it."
            )
            return self._renderer.message(request, "Not to be edited here", detail, HTTPStatus.CONFLICT)
        return self._render(request, item, Edit(text))

    async def push(self, request: Request) -> Response:
        """Check an edited payload and show what will be pushed; push it once the reader has seen that."""
        entered = first_values(await read_fields(request))
        try:
            id, edit = ObjectId(entered["id"]), Edit(entered["payload"])
        except (InvalidId, KeyError) as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM) from error
        edit.to, edit.label = entered.get("to", "").strip(), entered.get("label", "").strip()
        item = await self._find(id)
        is_confirmed = "confirmed" in entered
        done = await self._replay(item, edit, dry_run=not is_confirmed)
        if edit.problems or done is None:
            return self._render(request, item, edit, HTTPStatus.UNPROCESSABLE_ENTITY)
        target = edit.to or item.queue
        if not is_confirmed:
            found = await to_thread.run_sync(_list_differences, item.payload, edit.payload)
            return self._render(request, item, edit, differences=found, target=target)
        audit.record(request, "replay", item.queue, done.pushed, to=target, id=str(id), payload="edited")
        return self._renderer.message(request, "Done", f"1 copy with the edited payload was pushed to {target}.")

    async def _find(self, id: ObjectId) -> Item[Any]:
        """Return the processed item with an id.

        Raises:
            HTTPException: there is none.
        """
        item: Item[Any] | None = await self._client.read(find_item, id)
        if item is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no item {id}; its time in the history may be over")
        if show_state(item) != "processed" or not has_payload(item) or getattr(item._document, "problem", None):
            detail = f"item {id} is not in the history with its payload: only what was processed is replayed"
            raise HTTPException(HTTPStatus.CONFLICT, detail)
        return item

    async def _replay(self, item: Item[Any], edit: Edit, *, dry_run: bool) -> Replayed | None:
        """Push the copy, or try to; what is wrong is noted beside its field."""
        try:
            edit.payload = await to_thread.run_sync(read_json, edit.text)
            if edit.payload is None:
                raise ValueError("null is no payload")  # one place for what is wrong with the text
        except ValueError as error:
            edit.problems["payload"] = str(error)
        target = edit.to or item.queue
        try:
            queue_name(target, "to")
        except ArgumentInvalid as error:
            edit.problems["to"] = error.problem
        if edit.problems:
            return None
        handle = await self._services.open_queue(item.queue)
        options = {"label": edit.label, "limit": 1, "dry_run": dry_run, "transform": lambda *_: edit.payload}
        try:
            done: Replayed = await self._client.call(handle.replay, ids=[item.id], to=target, **options)
        except ArgumentInvalid as error:
            name = error.argument if error.argument in ("label", "to") else "payload"
            edit.problems[name] = (
                f"{error.path}: {error.problem}" if isinstance(error, PayloadInvalid) else error.problem
            )
            return None
        if done.refusals:
            edit.problems["payload"] = done.refusals[0][1]
        elif done.already:
            edit.problems["label"] = "a copy of this item was pushed before; give this replay another name"
        elif not done.pushed:
            raise HTTPException(HTTPStatus.CONFLICT, f"item {item.id} is not in the history any more")
        return done

    def _render(
        self, request: Request, item: Item[Any], edit: Edit, status: int = HTTPStatus.OK, **preview: Any
    ) -> Response:
        values = {"id": item.id, "queue": item.queue, "edit": edit, "differences": None, "target": None, **preview}
        return self._renderer.page(request, "edit", status, **values)


def _list_differences(before: Any, after: Any) -> list[Difference]:
    return list(islice(find_differences(before, after), MAX_DIFFERENCES))
