"""Link: lets the first browser that opens it make changes on a dashboard of this machine, and no other caller."""

from __future__ import annotations

import hmac
import logging
import secrets
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

logger = logging.getLogger("mongoq.audit")

TOKEN_BYTES = 32
"""Random bytes of a token."""
COOKIE_BYTES = 4
"""Random bytes in the name of a cookie: a browser keeps those of all ports of a host together."""
LINK_PATH = "/link"
"""Path of the link below the place where the app is served."""
LOGOUT_PATH = "/logout"
PROBLEM = "changes need the link that the dashboard has printed at its start"
USED = "this link has been used; start the dashboard again for another one"
WRONG = "this is not the link of the running dashboard; each start prints another one"


class SecretLink:
    """Secret link of one dashboard; the browser that opens it may make changes.

    A port of this machine is open for each of its users, and for each program that they run. The link has a random
    token. The first browser that opens it gets a session: a cookie that no script reads and no other site can have
    sent. Then the token is worth nothing, for a browser keeps the addresses that it has opened. Until then a program
    may send it as a bearer token. The session ends with a logout, or with the process.

    Attributes:
        token: random token of the link; show it to the person who has started the dashboard, and to no log.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookie = f"mongoq-{secrets.token_hex(COOKIE_BYTES)}"
        self._is_used = False
        self._ticket: str | None = None

    def __repr__(self) -> str:
        """Return a text without the token."""
        return "SecretLink()"

    def has_session(self, request: Request) -> bool:
        """Return whether a request has the cookie of the session."""
        return self._ticket is not None and _is_same(request.cookies.get(self._cookie, ""), self._ticket)

    def has_token(self, request: Request) -> bool:
        """Return whether a request has the token as a bearer token, before a browser has used it."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return not self._is_used and scheme.lower() == "bearer" and _is_same(token.strip(), self.token)

    def make_router(self) -> APIRouter:
        """Return the calls that begin and end the session."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route(LINK_PATH, self.begin)
        router.add_api_route(LOGOUT_PATH, self.end, methods=["POST"])
        return router

    async def begin(self, request: Request, token: str = "") -> Response:
        """Exchange the token for the cookie, and send the browser to the first page.

        Raises:
            HTTPException: it is another token, or was used before.
        """
        address = "" if request.client is None else request.client.host
        if not _is_same(token, self.token):
            logger.warning("a wrong link was opened: %r", address, extra={"mongoq_user": address})
            raise HTTPException(HTTPStatus.FORBIDDEN, WRONG)
        if self._is_used:
            logger.warning("the link was opened once more: %r", address, extra={"mongoq_user": address})
            raise HTTPException(HTTPStatus.FORBIDDEN, USED)
        logger.info("the link was opened: %r may make changes", address, extra={"mongoq_user": address})
        # Another secret: what has been read from a browser's history opens nothing.
        self._is_used, self._ticket = True, secrets.token_urlsafe(TOKEN_BYTES)
        answer, options = self._answer(request)
        answer.set_cookie(self._cookie, self._ticket, **options)
        return answer

    async def end(self, request: Request) -> Response:
        """End the session; the dashboard can be read only from now on."""
        if self.has_session(request):
            self._ticket = None
        answer, options = self._answer(request)
        answer.delete_cookie(self._cookie, **options)
        return answer

    @staticmethod
    def _answer(request: Request) -> tuple[Response, dict[str, Any]]:
        """Return the answer that leads to the first page, and the options of the cookie."""
        root = request.scope.get("root_path", "").rstrip("/")
        answer = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": f"{root}/"})
        is_secure = request.scope.get("scheme") == "https"
        return answer, {"path": f"{root}/", "secure": is_secure, "httponly": True, "samesite": "strict"}


def _is_same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())  # in a time that tells nothing
