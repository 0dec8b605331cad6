"""Guard: decides about each request before the app sees it, and adds the headers of security to each answer."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mongoq.data.encoding.error_text import name_of
from mongoq.web.access import Access, Attempts, Grant, SecretLink, Users, address_of, decide
from mongoq.web.problems import (
    LOGIN_HEADER,
    RETRY_SECONDS,
    SAFE_METHODS,
    ProblemResponse,
    ShowPage,
    make_problem,
    path_of,
    show_to_people,
)

logger = logging.getLogger("mongoq.audit")

MAX_BODY_BYTES = 17 * 1024 * 1024
"""Bytes of a request's body, at most: a payload of 16 MiB in JSON of about this length."""
BODY_SECONDS = 60.0
"""Seconds in which the body of a request has to come: a server waits for each request before it ends."""
TOO_LONG = f"a body has {MAX_BODY_BYTES:,} bytes at most"
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Bytes of answers that clients have not read yet; beyond them, answers of more than one piece are refused."""
PIECE_BYTES = 64 * 1024
"""Bytes of an answer that are sent at once; the next ones wait until the client has read."""
READ_SECONDS = 20.0
"""Seconds in which a client has to read a piece of an answer."""
UNREAD = "clients have not read the answers that are waiting for them: ask again later, or for fewer items"
GRANT = "mongoq.grant"
"""Key of the grant in the scope of a request."""
HEADERS = {
    # Nothing but what this app itself serves; no script, style or picture of another host, and no frame around it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that lets a request through if its caller may do what it asks for.

    GET and HEAD need the level ``"read"``, everything else ``"act"``, so no call can be added without a check. A change
    that a page of another site has made the browser send is refused.

    Args:
        app: the app behind the guard.
        access: who may do what.
        origins: origins besides the app's own that may send changes, such as ``"https://queues.example.com"``: needed
            behind a proxy that replaces the header ``Host``.
        show_page: shows a problem document as a page.

    Attributes:
        unsent: bytes of all answers that clients have not read yet.
    """

    def __init__(
        self, app: ASGIApp, access: Access | Users | SecretLink, show_page: ShowPage, origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._show_page = show_page
        self._access: Access | Users | SecretLink = access
        self._origins = frozenset(origins)
        self._attempts = Attempts()
        self.unsent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and let it through or answer it with a problem document or its page."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        if scope["path"] == scope.get("root_path"):  # the front page, as a proxy asks for it that keeps the prefix
            scope = {**scope, "path": f"{scope['path']}/"}
        answer = _Answer(send, self)
        request = Request(scope)
        refusal = await self._refuse(request)
        if refusal is not None:
            shown = await show_to_people(request, refusal, self._show_page)
            await shown(scope, receive, answer.send)
            return
        try:
            await self._app(scope, _limit_body(scope, receive), answer.send)
        except ClientDisconnect:  # in the middle of its body: nothing was done, and no caller waits for an answer
            return
        except anyio.get_cancelled_exc_class():  # the server ends
            if request.method not in SAFE_METHODS:  # all of the change, a part or nothing may have happened
                user, text = grant_of(scope).user, "a change may have happened in part, because the server ends: %r: %r"
                logger.warning(text, user, path_of(request), extra={"mongoq_user": user})
            raise
        except Exception as error:  # a fault of ours, or of the application around this app
            if answer.has_begun:
                raise
            logging.getLogger("mongoq.web").exception("a call has failed")
            detail = f"a fault, which the log describes: {name_of(error)}"
            await make_problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)(scope, receive, answer.send)

    async def _refuse(self, request: Request) -> ProblemResponse | None:
        """Return the answer to a request that may not go on; ``None`` for one that may."""
        is_login = isinstance(self._access, Users) and "authorization" in request.headers
        if is_login and (wait := self._attempts.find_wait(address_of(request))):
            headers = {"Retry-After": str(math.ceil(wait))}
            return make_problem(HTTPStatus.TOO_MANY_REQUESTS, "too many logins have failed; try again later", headers)
        try:
            grant = await decide(self._access, request)
        except Exception as error:  # of the application's function; its text may hold private data
            logger.exception("the access of a request could not be decided")
            detail = f"the access could not be decided: {name_of(error)}"
            return make_problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
        request.scope[GRANT] = grant
        if is_login and grant.level != "none":
            self._attempts.record_success(address_of(request))
        if is_login and grant.has_failed:  # neither name nor secret is logged: people mix up the fields
            address, extra = address_of(request), {"mongoq_user": grant.user}
            self._attempts.record_failure(address)
            logger.warning("a login has failed: %r", address, extra=extra)
            if self._attempts.find_wait(address):
                logger.warning("too many logins have failed: those of %r wait", address, extra=extra)
        is_change = request.method not in SAFE_METHODS
        if grant.level == "none" or (is_change and grant.level != "act"):
            problem = grant.problem or "this access is read-only: nothing can be changed"
            if is_change and not grant.has_failed:
                _log_refusal(request, grant, problem)
            if grant.asks_for_login:
                headers = {LOGIN_HEADER: 'Basic realm="mongoq", charset="UTF-8"'}
                return make_problem(HTTPStatus.UNAUTHORIZED, problem, headers)
            return make_problem(HTTPStatus.FORBIDDEN, problem)
        if not is_change:
            return None
        if not self._is_same_origin(request):
            _log_refusal(request, grant, "a page of another site has sent it")
            return make_problem(HTTPStatus.FORBIDDEN, "a page of another site may not change anything here")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            return make_problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
        return None

    def _is_same_origin(self, request: Request) -> bool:
        """Return whether a request comes from a page of this app, or from a program that is no browser."""
        origin = request.headers.get("origin")
        if origin in self._origins:
            return True
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        if origin is None:
            return True
        try:
            host = urlsplit(origin).netloc.lower()  # empty for an origin such as that of a page in a sandbox
        except ValueError:
            return False
        return host != "" and host == request.headers.get("host", "").lower()


class _Answer:
    """Sends an answer piece by piece, with the headers of security, or another one where there is no memory for it.

    Attributes:
        has_begun: True once a part of it was sent.
    """

    def __init__(self, send: Send, guard: Guard) -> None:
        self.has_begun = False
        self._send = send
        self._guard = guard
        self._start: Message | None = None
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer; its beginning waits for the first bytes.

        Raises:
            ClientDisconnect: the client does not read.
        """
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"")
        if self._start is not None:
            if len(body) > PIECE_BYTES and self._guard.unsent > MAX_UNSENT_BYTES:
                self._is_refused = True
                problem = make_problem(HTTPStatus.SERVICE_UNAVAILABLE, UNREAD, {"Retry-After": RETRY_SECONDS})
                self._start = {**self._start, "status": problem.status_code, "headers": problem.raw_headers}
                message, body = {"type": message["type"]}, bytes(problem.body)
            self.has_begun = True
            headers = MutableHeaders(scope=self._start)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if headers.get("content-type", "").startswith("text/event-stream"):
                headers.setdefault("X-Accel-Buffering", "no")  # nginx would keep events until there are many
            await self._send(self._start)
            self._start = None
        self._guard.unsent += len(body)
        try:
            for begin in range(0, len(body) or 1, PIECE_BYTES):
                end = begin + PIECE_BYTES
                more = end < len(body) or message.get("more_body", False)
                with anyio.fail_after(READ_SECONDS):
                    await self._send({"type": message["type"], "body": body[begin:end], "more_body": more})
        except TimeoutError:
            raise ClientDisconnect from None
        finally:
            self._guard.unsent -= len(body)


def _log_refusal(request: Request, grant: Grant, reason: str) -> None:
    """Log a change that was refused, with its caller."""
    caller = " from ".join(dict.fromkeys(name for name in (grant.user, address_of(request)) if name))
    text = "a change was refused: %r: %s %r: %s"
    # With %r: a path is decoded, and may hold control characters.
    logger.warning(text, caller, request.method, path_of(request), reason, extra={"mongoq_user": grant.user})


def grant_of(scope: MutableMapping[str, Any]) -> Grant:
    """Return the grant that the guard has put into a request."""
    grant: Grant = scope[GRANT]
    return grant


def _limit_body(scope: Scope, receive: Receive) -> Receive:
    """Return a ``receive`` that refuses a body which turns out to be longer than it may be, or comes too slowly."""
    if scope["method"] in SAFE_METHODS:
        return receive
    left, ends, is_whole = MAX_BODY_BYTES, anyio.current_time() + BODY_SECONDS, False

    async def receive_limited() -> Message:
        nonlocal left, is_whole
        if is_whole:  # what comes now is the end of the connection
            return await receive()
        try:
            with anyio.fail_after(max(0.0, ends - anyio.current_time())):
                message = await receive()
        except TimeoutError:
            problem = f"the body did not come within {BODY_SECONDS:.0f} seconds"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, problem) from None
        is_whole = not message.get("more_body", False)
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
        return message

    return receive_limited
