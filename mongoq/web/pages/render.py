"""Rendering: templates with values of users as text, never as HTML; and the fields that forms send."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from bson import Binary, ObjectId
from fastapi import HTTPException, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from mongoq import BoundedCount, __version__
from mongoq.data.encoding.extended_json import duration_text, json_text, read_json, time_text
from mongoq.web.problems import SAFE_METHODS, path_of

RENEWAL_HEADER = "x-mongoq-renewal"
"""Header of a request that the script of an open page sends."""
SHORT_CHARACTERS = 160
"""Characters of a payload in a list, at most."""
LONG_CHARACTERS = 100_000
"""Characters of a payload on the page of its item, at most; the API has all of it."""
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FIELDS = 1_000
"""Fields of one form, at most."""
PACKED = "json:"
"""Beginning of the name of a field whose value is JSON: a browser sends each end of a line as CR LF otherwise."""
NO_FORM = "this is no form of a page"


def show_count(value: BoundedCount | int) -> str:
    """Return a number of items; "more than N" where the count ended at its limit."""
    if isinstance(value, int):
        return f"{value:,}"
    if value.exact:
        return f"{value.number:,}"
    return f"more than {value.number - 1:,}" if value.number else "not counted"


def show_rate(value: float) -> str:
    """Return a number of items a minute."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def show_duration(value: timedelta | None) -> str:
    """Return a duration in whole seconds, in its two largest units; empty for none."""
    return "" if value is None else duration_text(timedelta(seconds=int(value.total_seconds())))


def show_short(value: Any) -> str:
    """Return a value as one line of JSON, shortened."""
    return _shorten(json_text(_prune(value, SHORT_CHARACTERS)))


def show_long(value: Any) -> str:
    """Return a value as JSON in lines; the end of a very long one is left out."""
    return _end(json_text(_prune(value, LONG_CHARACTERS), indent=2))


def show_cell(value: Any) -> str:
    """Return a field of an envelope for a table: another program may have stored anything there, of any length."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _shorten(value)
    return str(value) if isinstance(value, int | float) else show_short(value)


def show_text(value: Any) -> str:
    """Return a text of an envelope, or another value in its place as JSON; the end of a very long one is left out."""
    return _end(value) if isinstance(value, str) else show_long(value)


def show_time(at: Any) -> str:
    """Return a time; empty for none."""
    if at is None:
        return ""
    return time_text(at, "seconds") if isinstance(at, datetime) else show_cell(at)


def show_sentence(value: str) -> str:
    """Return a sentence with codes in place of control characters: one in a name could turn the words after it."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)


def _shorten(text: str) -> str:
    return text if len(text) <= SHORT_CHARACTERS else f"{text[: SHORT_CHARACTERS - 1]}…"


def _end(text: str) -> str:
    return text if len(text) <= LONG_CHARACTERS else f"{text[:LONG_CHARACTERS]}… (the API has all of it)"


def _prune(value: Any, room: int) -> Any:
    """Return the beginning of a value whose JSON fills this room of characters: 16 MiB in JSON would take seconds.

    The JSON of a value without its end is longer than the room, so a reader never sees where it closes.
    """

    def prune(value: Any) -> Any:
        nonlocal room
        if isinstance(value, Mapping):
            fields: dict[str, Any] = {}
            for name, part in value.items():
                if room <= 0:
                    break
                room -= len(name) + 4
                fields[name[: LONG_CHARACTERS + 1]] = prune(part)
            return fields
        if isinstance(value, list | tuple):
            return [prune(part) for part in takewhile(lambda _: room > 0, value)]
        allowed = max(room, 0) + 1
        room -= len(value) if isinstance(value, str | bytes) else 1
        if isinstance(value, str | bytes) and len(value) > allowed:
            return Binary(value[:allowed], value.subtype) if isinstance(value, Binary) else value[:allowed]
        return value

    return prune(value)


def is_id(value: Any) -> bool:
    """Return whether a value is the id of an item that a link can name; another program may use other ids."""
    return isinstance(value, str | ObjectId) and ObjectId.is_valid(value)


def root_of(request: Request) -> str:
    """Return the path at which the app is mounted, for addresses: its parameters may come from the request."""
    return quote(request.scope.get("root_path", "").rstrip("/"), errors="backslashreplace")


def make_address(root: str, path: str, **parameters: Any) -> str:
    """Return the address of a page below the place where the app is mounted; empty parameters are left out."""
    used = {
        name: value for name, value in parameters.items() if value is not None and value is not False and value != ""
    }
    # A lone surrogate, which another program may have stored in a name, has no UTF-8.
    return f"{root}{path}" + (f"?{urlencode(used, errors='backslashreplace')}" if used else "")


ENVIRONMENT = Environment(
    loader=PackageLoader("mongoq.web.pages"),
    autoescape=True,  # values of users are text, never HTML
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "cell": show_cell,
    "count": show_count,
    "duration": show_duration,
    "long": show_long,
    "packed": json.dumps,
    "rate": show_rate,
    "sentence": show_sentence,
    "shell": shlex.quote,
    "short": show_short,
    "text": show_text,
    "time": show_time,
}
ENVIRONMENT.tests |= {"id": is_id, "list": lambda value: isinstance(value, list)}


def render(request: Request, name: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """Return the page of a template."""
    grant = request.scope.get("mongoq.grant")
    common: Mapping[str, Any] = {
        "link": partial(make_address, root_of(request)),
        "may_act": grant is not None and grant.level == "act",
        # The script of a page takes its content alone, and several readers share it.
        "user": "" if grant is None or RENEWAL_HEADER in request.headers else grant.user,
        "has_session": grant is not None and grant.has_session,
        "path": path_of(request),
        # The answer to a form has no address of its own: another page would come in its place.
        "renews": request.method in SAFE_METHODS,
        "version": __version__,
    }
    text = ENVIRONMENT.get_template(f"{name}.html").render({**common, **values})
    # HTML has no NUL, and a lone surrogate has no UTF-8; another program may have stored both.
    return HTMLResponse(text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "backslashreplace"), status)


def render_message(
    request: Request,
    title: str,
    text: str,
    status: int = 200,
    *,
    nearest: Sequence[str] = (),
    is_temporary: bool = False,
) -> HTMLResponse:
    """Return a page that says something; ``nearest`` are queues that the reader may have meant."""
    values = {"title": title, "text": text, "nearest": nearest, "is_temporary": is_temporary}
    return render(request, "message", status, **values)


# --- forms --------------------------------------------------------------------------------------


async def read_fields(request: Request) -> dict[str, list[str]]:
    """Return the values of each field of a form.

    A field whose name begins with ``PACKED`` has its value as JSON.

    Raises:
        HTTPException: it is no form, or has too many fields.
    """
    if request.headers.get("content-type", "").partition(";")[0] != FORM_TYPE:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send a form")
    body = await request.body()  # outside: a body that is too long has an answer of its own
    try:
        text = body.decode()
        values = parse_qs(text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=MAX_FIELDS)
        fields: dict[str, list[str]] = {}
        for name, many in values.items():
            is_packed = name.startswith(PACKED)
            fields[name.removeprefix(PACKED)] = read = [read_json(value) for value in many] if is_packed else many
            if not all(isinstance(value, str) for value in read):
                raise ValueError(f"{name} is to be a text")  # one error for all that no page sends
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM) from error
    return fields


def first_values(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the first value of each field."""
    return {name: many[0] for name, many in fields.items()}


def go_to(request: Request, path: str, **parameters: str) -> Response:
    """Send the browser to a page."""
    address = make_address(root_of(request), path, **parameters)
    return Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": address})
