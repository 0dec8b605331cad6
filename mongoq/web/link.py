"""Link: lets the caller who has started a dashboard on this machine make changes, and no other caller on it."""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Request, Response

TOKEN_BYTES = 32
"""Random bytes of a token."""
COOKIE_BYTES = 4
"""Random bytes in the name of a cookie: a browser keeps those of all ports of a host together."""
LINK_PATH = "/link"
"""Path of the link below the place where the app is served."""
PROBLEM = "changes need the link that the dashboard has printed at its start"
WRONG = "this is not the link of the running dashboard; each start prints another one"


class SecretLink:
    """Secret link of one dashboard; a browser that opens it may make changes.

    A port of this machine is open for each of its users, and for each program that they run. The link has a random
    token, for which the browser gets a cookie that no script reads and no other site can have sent. A program may send
    the token as a bearer token. Both are forgotten when the process ends.

    Attributes:
        token: random token of the link; show it to the person who has started the dashboard, and to no log.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookie = f"mongoq-{secrets.token_hex(COOKIE_BYTES)}"
        # Another secret: what has been read from a browser opens no further browser.
        self._ticket = secrets.token_urlsafe(TOKEN_BYTES)

    def __repr__(self) -> str:
        """Return a text without the token."""
        return "SecretLink()"

    def is_known(self, request: Request) -> bool:
        """Return whether a request has the cookie of the link, or its token as a bearer token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and _is_same(token.strip(), self.token)
        return is_bearer or _is_same(request.cookies.get(self._cookie, ""), self._ticket)

    def make_router(self) -> APIRouter:
        """Return the call of the link, which exchanges the token for the cookie."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route(LINK_PATH, self.exchange)
        return router

    async def exchange(self, request: Request, token: str = "") -> Response:
        """Give the browser the cookie, and send it to the first page.

        Raises:
            HTTPException: it is another token.
        """
        if not _is_same(token, self.token):
            raise HTTPException(HTTPStatus.FORBIDDEN, WRONG)
        root = request.scope.get("root_path", "").rstrip("/")
        answer = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": f"{root}/"})
        is_secure = request.scope.get("scheme") == "https"
        answer.set_cookie(
            self._cookie, self._ticket, path=f"{root}/", secure=is_secure, httponly=True, samesite="strict"
        )
        return answer


def _is_same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())  # in a time that tells nothing
