"""Forms: the fields that a browser sends, and where it goes afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import HTTPException, Request, Response

from mongoq.data.encoding.extended_json import read_json
from mongoq.web.pages.render import make_address, root_of

FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FIELDS = 1_000
"""Fields of one form, at most."""
PACKED = "json:"
"""Beginning of the name of a field whose value is JSON: a browser sends each end of a line as CR LF otherwise."""
NO_FORM = "this is no form of a page"


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
        return {name.removeprefix(PACKED): [_unpack(name, value) for value in many] for name, many in values.items()}
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM) from error


def _unpack(name: str, value: str) -> str:
    if not name.startswith(PACKED):
        return value
    unpacked = read_json(value)
    if not isinstance(unpacked, str):
        raise ValueError(f"{name} is to be a text")  # noqa: TRY004  # one error for all that no page sends
    return unpacked


def first_values(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the first value of each field."""
    return {name: many[0] for name, many in fields.items()}


def go_to(request: Request, path: str, **parameters: str) -> Response:
    """Send the browser to a page."""
    address = make_address(root_of(request), path, **parameters)
    return Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": address})
