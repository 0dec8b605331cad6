"""Problem documents: errors as JSON in the form of RFC 9457."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mongoq.drivers.errors import describe_missing_right
from mongoq.errors import (
    ArgumentInvalid,
    AuthenticationFailed,
    BrokerClosed,
    CollectionUnsuitable,
    DuplicateItem,
    MongoqError,
    PayloadTooLarge,
    QueueUnknown,
    ScheduleUnknown,
    ServerUnavailable,
)

logger = logging.getLogger("mongoq.web")
audit = logging.getLogger("mongoq.audit")

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = "5"
"""Seconds after which a caller may try again when no server answered."""
LOGIN_HEADER = "WWW-Authenticate"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
IN_DOUBT = "the change may have happened, all of it or a part: look before you send it again"
TOO_LONG = "MongoDB took too long, and the call was ended: choose fewer items, by a narrower filter or time"
UNANSWERED = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""Statuses after which a change may have happened or not."""
NO_SERVER = "no MongoDB server answers; the log says why"
REFUSED_LOGIN = "MongoDB refuses the credentials of this app; the log says why"
UNAUTHORIZED_CODE = 13
MAX_FIELD_PROBLEMS = 100
"""Fields that one answer finds fault with, at most: a body may have a million of them."""
MAX_FIELD_CHARACTERS = 200
MAX_LOGGED_CHARACTERS = 300
PROBLEM_REFERENCE = {"$ref": "#/components/schemas/Problem"}
STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (QueueUnknown, HTTPStatus.NOT_FOUND),
    (ScheduleUnknown, HTTPStatus.NOT_FOUND),
    (PayloadTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (ArgumentInvalid, HTTPStatus.UNPROCESSABLE_ENTITY),
    (DuplicateItem, HTTPStatus.CONFLICT),
    (AuthenticationFailed, HTTPStatus.BAD_GATEWAY),
    (ServerUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerClosed, HTTPStatus.SERVICE_UNAVAILABLE),
    (CollectionUnsuitable, HTTPStatus.BAD_GATEWAY),
    (MongoqError, HTTPStatus.CONFLICT),
)
"""Status of each kind of error; the first that fits."""


class FieldProblem(BaseModel):
    """What is wrong with one field of a request."""

    field: str = Field(description="Name of the parameter, or path of the field in the body.")
    problem: str


class Problem(BaseModel):
    """An error, as RFC 9457 describes it."""

    model_config = ConfigDict(extra="allow")

    title: str = Field(description="Name of the status.")
    status: int
    detail: str = Field(description="What is wrong, in a sentence, and what to do.")
    fields: list[FieldProblem] = Field([], description="The fields that cannot be used.")
    nearest: list[str] = Field([], description="Names of queues that are most like an unknown one.")


class ProblemResponse(JSONResponse):
    """Response that is a problem document."""

    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        """Return the body; a lone surrogate, which has no UTF-8, is written as an escape."""
        return json.dumps(content).encode()


REFUSAL = {"model": Problem, "description": "The request cannot be carried out."}
RESPONSES: dict[int | str, dict[str, Any]] = {
    422: REFUSAL,  # or FastAPI would describe its own
    "4XX": REFUSAL,
    "5XX": {"model": Problem, "description": "No server answers, or it refuses the call."},
}
"""Problem documents of all calls, for OpenAPI."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of an app in OpenAPI, with the media type of its problem documents."""
    if app.openapi_schema is None:
        described = FastAPI.openapi(app)
        calls = [call for path in described["paths"].values() for call in path.values()]
        for answer in (answer for call in calls for answer in call["responses"].values()):
            content = answer.get("content", {})
            if content.get("application/json", {}).get("schema") == PROBLEM_REFERENCE:
                answer["content"] = {MEDIA_TYPE: content["application/json"]}
    return app.openapi_schema or {}


def is_away(error: Exception) -> bool:
    """Return whether an error says that the driver has looked for a server in vain."""
    return isinstance(error, ServerSelectionTimeoutError) or isinstance(error.__cause__, OverflowError)


def make_problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> ProblemResponse:
    """Return the response for an error."""
    title = HTTPStatus(status).phrase
    problem = Problem(title=title, status=status, detail=detail, **more)
    return ProblemResponse(problem.model_dump(mode="json", exclude_defaults=True), status, headers)


ShowPage = Callable[[Request, dict[str, Any]], Awaitable[Response]]
"""Function that shows a problem document as a page."""
DATA_PATHS = ("/api/", "/v1/", "/metrics")
"""Beginnings of the paths of calls that programs send; all others are pages."""


def path_of(request: Request) -> str:
    """Return the path of a request below the place where the app is mounted.

    It is not taken from ``request.url``, which a caller's header ``Host`` may make impossible to read.
    """
    path: str = request.scope["path"]
    root = request.scope.get("root_path", "").rstrip("/")
    # Some proxies remove the prefix from the path, and /a is no prefix of /api.
    return path.removeprefix(root) if f"{path}/".startswith(f"{root}/") else path


def add_handlers(app: FastAPI, show_page: ShowPage) -> None:
    """Let an app answer errors with problem documents, and on pages with a page that shows one."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = _answer(error)
        if request.method not in SAFE_METHODS and problem.status_code in UNANSWERED:
            # All of the change, a part or nothing may have happened; without ``Retry-After``, because a push that is
            # sent again might be a second item.
            user, path = getattr(request.scope.get("mongoq.grant"), "user", ""), path_of(request)
            audit.warning("a change may have happened in part: %r: %r", user, path, extra={"mongoq_user": user})
            detail = json.loads(bytes(problem.body))["detail"]
            problem = make_problem(problem.status_code, f"{detail}; {IN_DOUBT}")
        return await show_to_people(request, problem, show_page)

    for kind in (RequestValidationError, HTTPException, MongoqError, PyMongoError, OSError):
        app.add_exception_handler(kind, answer)


async def show_to_people(request: Request, problem: ProblemResponse, show_page: ShowPage) -> Response:
    """Return a page that shows a problem document if a browser has asked for a page; else the document."""
    if path_of(request).startswith(DATA_PATHS) or "text/html" not in request.headers.get("accept", ""):
        return problem
    page = await show_page(request, json.loads(bytes(problem.body)))
    for name in (LOGIN_HEADER, "Retry-After"):  # without the first a browser asks for no password
        if name in problem.headers:
            page.headers[name] = problem.headers[name]
    return page


def _answer(error: Exception) -> ProblemResponse:
    """Return the answer to an error that a call has raised."""
    if isinstance(error, HTTPException):
        return make_problem(error.status_code, str(error.detail), dict(error.headers or {}))
    if isinstance(error, MongoqError):
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        more: dict[str, Any] = {}
        if isinstance(error, QueueUnknown):
            more["nearest"] = list(error.nearest)
        elif isinstance(error, ArgumentInvalid):
            more["fields"] = [FieldProblem(field=error.argument, problem=error.problem)]
        headers = {"Retry-After": RETRY_SECONDS} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        return make_problem(status, describe_error(error), headers, **more)
    if isinstance(error, RequestValidationError):
        return _answer_invalid(error)
    # An error of the driver, without its text: that may hold values of documents and names of hosts. The text of a lost
    # connection names hosts alone, and goes into the log.
    if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED_CODE:
        return make_problem(HTTPStatus.BAD_GATEWAY, f"MongoDB {describe_missing_right(error)}")
    text = f": {str(error)[:MAX_LOGGED_CHARACTERS]!r}" if isinstance(error, AutoReconnect) else ""
    logger.warning("a call has failed: %s%s", type(error).__name__, text)
    if isinstance(error, OperationFailure) and not error.timeout:
        return make_problem(HTTPStatus.BAD_GATEWAY, f"MongoDB refused the command: code {error.code}")
    if isinstance(error, PyMongoError) and error.timeout and not is_away(error):
        return make_problem(HTTPStatus.GATEWAY_TIMEOUT, TOO_LONG)
    detail = f"no server answers: {type(error).__name__}"
    return make_problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": RETRY_SECONDS})


def _answer_invalid(error: RequestValidationError) -> ProblemResponse:
    """Name the fields of a request that cannot be used."""
    fields = []
    for each in error.errors()[:MAX_FIELD_PROBLEMS]:
        location = each["loc"]
        names = location[1:] if location and location[0] in ("query", "body", "path", "header") else location
        field = (".".join(map(str, names)) or "body")[:MAX_FIELD_CHARACTERS]
        # A message of pydantic begins with the kind of our own exception.
        fields.append(FieldProblem(field=field, problem=str(each["msg"]).removeprefix("Value error, ")))
    detail = "; ".join(f"{each.field}: {each.problem}" for each in fields)
    return make_problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, fields=fields)


def describe_error(error: Exception) -> str:
    """Return the text of an error for callers; that of a server which is away names hosts, and is for the log."""
    if not isinstance(error, ServerUnavailable):
        return str(error)
    logger.warning("%s", error)
    return REFUSED_LOGIN if isinstance(error, AuthenticationFailed) else NO_SERVER
