"""Access: who may read, who may change something, and how often a login may fail."""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, Self, get_args

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Request, Response

from mongoq.errors import ArgumentInvalid

logger = logging.getLogger("mongoq.audit")

Level = Literal["none", "read", "act"]
"""What a caller may do: nothing, read, or also change something."""
Access = Level | Callable[[Request], Level | Awaitable[Level]]
"""Access of an app: a level for every caller on this machine, ``Users``, or a function of the application."""

USERS_VARIABLE = "MONGOQ_WEB_USERS"
"""Variable of the environment that ``Users.from_environment`` reads by default."""
MIN_SECRET_CHARACTERS = 12
"""Characters of a secret, at least."""
HASH_PREFIX = "sha256:"
HASH_CHARACTERS = 64
PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers by which a proxy tells that it passes on the request of another caller."""
MAX_FAILURES = 10
"""Failed logins of one address in a minute, at most."""
MAX_FAILURES_IN_ALL = 100
"""Failed logins of all addresses in a minute, at most."""
WINDOW_SECONDS = 60.0
MAX_KNOWN = 1_000
"""Addresses that are known by a login, at most."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names by which a browser on this machine calls an app on the loopback interface."""
TOKEN_BYTES = 32
"""Random bytes of a token."""
COOKIE_BYTES = 4
"""Random bytes in the name of a cookie: a browser keeps those of all ports of a host together."""
LINK_PATH = "/link"
"""Path of the link below the place where the app is served."""
LOGOUT_PATH = "/logout"
NEEDS_LINK = "changes need the link that the dashboard has printed at its start"
USED_LINK = "this link has been used; start the dashboard again for another one"
NOT_LOCAL = "without authentication only this machine is answered, by the name localhost or 127.0.0.1"
WRONG_LINK = "this is not the link of the running dashboard; each start prints another one"


@dataclass(frozen=True, slots=True)
class Grant:
    """What one request may do.

    Attributes:
        level: level of its caller.
        user: name of the caller, for the audit log.
        problem: why the caller may not do more, in a sentence; may be empty.
        asks_for_login: True if the caller may try again with a name and a secret.
        has_failed: True if the caller has sent a secret that is wrong.
        has_session: True if the caller has a session, which it can end.
    """

    level: Level
    user: str
    problem: str = ""
    asks_for_login: bool = False
    has_failed: bool = False
    has_session: bool = False


class Users:
    """Users with a secret each, which is a bearer token, or the password of basic authentication.

    ```python
    app = create_app(broker, access=Users.from_file("users.txt"))
    ```

    Each line of the text is ``name:level:secret``. The level is ``read`` or ``act``. The secret has at least 12
    characters, all of ASCII, or is ``sha256:`` with the SHA-256 of the secret in hex digits. Use random secrets: the
    hash of a guessable one is guessed as well. Empty lines and lines that begin with ``#`` are left out.

    Args:
        text: the lines.

    Raises:
        ArgumentInvalid: a line cannot be used; the error names its number, and nothing of its content.
    """

    def __init__(self, text: str) -> None:
        self._users: dict[bytes, tuple[str, Level]] = {}
        names: set[str] = set()
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            where = f"line {number}"
            name, _, rest = line.strip().partition(":")
            level, colon, secret = rest.partition(":")
            if not name or not colon:
                raise ArgumentInvalid("users", f"{where} is to be name:level:secret")
            if level not in ("read", "act"):
                raise ArgumentInvalid("users", f"the level in {where} is to be read or act")
            if name in names:
                raise ArgumentInvalid("users", f"the name in {where} occurs twice")
            names.add(name)
            digest = _read_secret(secret, where)
            if digest in self._users:  # a bearer token would be that of the other user, with the other level
                raise ArgumentInvalid("users", f"the secret in {where} is that of another user")
            self._users[digest] = name, "act" if level == "act" else "read"
        if not self._users:
            raise ArgumentInvalid("users", "there is no user; write a line name:level:secret for each")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the users from a file.

        Raises:
            ArgumentInvalid: the file cannot be read, or a line of it cannot be used.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentInvalid("path", f"{path} cannot be read: {type(error).__name__}") from error
        return cls(text)

    @classmethod
    def from_environment(cls, variable: str = USERS_VARIABLE) -> Self:
        """Read the users from a variable of the environment, a line each.

        Raises:
            ArgumentInvalid: the variable is not set, or a line of it cannot be used.
        """
        text = os.environ.get(variable)
        if text is None:
            raise ArgumentInvalid("variable", f"{variable} is not set; write a line name:level:secret for each user")
        return cls(text)

    def check(self, header: str | None) -> Grant:
        """Return what the header ``Authorization`` of a request grants."""
        scheme, _, value = (header or "").partition(" ")
        name: str | None = None  # a token has none
        secret: str | None = None
        if scheme.lower() == "bearer":
            secret = value.strip() or None
        elif scheme.lower() == "basic":
            try:
                name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
                secret = password if colon else None
            except (binascii.Error, ValueError):
                pass  # as without a header
        if secret is None:
            return Grant("none", "", "send a token, or a name with a password", asks_for_login=True)
        digest = sha256(secret.encode()).digest()
        # All users are compared, so that the time of an answer says nothing about names.
        found: Grant | None = None
        for known, (user, level) in self._users.items():
            if hmac.compare_digest(known, digest) & (name in (None, user)):
                found = Grant(level, user)
        return found or Grant("none", "", "the token or the password is wrong", asks_for_login=True, has_failed=True)


def _read_secret(secret: str, where: str) -> bytes:
    if secret.startswith(HASH_PREFIX):
        try:
            digest = bytes.fromhex(secret.removeprefix(HASH_PREFIX))
        except ValueError:
            digest = b""
        if len(digest) * 2 != HASH_CHARACTERS:
            raise ArgumentInvalid("users", f"the hash in {where} is to have {HASH_CHARACTERS} hex digits")
        return digest
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise ArgumentInvalid("users", f"the secret in {where} has fewer than {MIN_SECRET_CHARACTERS} characters")
    if not secret.isascii():  # a header has no encoding that all programs agree on
        raise ArgumentInvalid("users", f"the secret in {where} has characters that are not ASCII, and would never work")
    return sha256(secret.encode()).digest()


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
        address = address_of(request)
        if not _is_same(token, self.token):
            logger.warning("a wrong link was opened: %r", address, extra={"mongoq_user": address})
            raise HTTPException(HTTPStatus.FORBIDDEN, WRONG_LINK)
        if self._is_used:
            logger.warning("the link was opened once more: %r", address, extra={"mongoq_user": address})
            raise HTTPException(HTTPStatus.FORBIDDEN, USED_LINK)
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


class Attempts:
    """Counts failed logins, so that no caller tries many secrets.

    An address that has logged in before has its own limit only: others cannot lock it out by using up the one of all.

    Args:
        clock: returns seconds; another one only in tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: deque[tuple[float, str]] = deque(maxlen=MAX_FAILURES_IN_ALL)
        self._known: dict[str, None] = {}

    def find_wait(self, address: str) -> float:
        """Return the seconds until a login of an address is tried again; 0 for now."""
        now = self._clock()
        while self._failures and self._failures[0][0] <= now - WINDOW_SECONDS:
            self._failures.popleft()
        own = [at for at, caller in self._failures if caller == address]
        if len(own) >= MAX_FAILURES:
            return own[-MAX_FAILURES] + WINDOW_SECONDS - now
        if len(self._failures) < MAX_FAILURES_IN_ALL or address in self._known:
            return 0.0
        return self._failures[0][0] + WINDOW_SECONDS - now

    def record_failure(self, address: str) -> None:
        """Count a failed login."""
        self._failures.append((self._clock(), address))

    def record_success(self, address: str) -> None:
        """Note an address that has logged in."""
        self._known.pop(address, None)
        self._known[address] = None  # the last of the dictionary is the one that logged in last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]


def check_access(access: Any) -> Access | Users | SecretLink:
    """Return the access of an app, checked.

    Raises:
        ArgumentInvalid: it is no level, no ``Users``, no link and no function.
    """
    if (
        isinstance(access, Users | SecretLink)
        or callable(access)
        or (isinstance(access, str) and access in ("read", "act"))
    ):
        return access  # type: ignore[no-any-return]  # what a function returns is checked at each request
    problem = f"'read', 'act', Users, or a function of the request, not {access!r:.60}"
    raise ArgumentInvalid("access", problem)


async def decide(access: Access | Users | SecretLink, request: Request) -> Grant:
    """Return what a request may do."""
    if isinstance(access, Users):
        return access.check(request.headers.get("authorization"))
    if isinstance(access, SecretLink) or not callable(access):
        address = address_of(request)
        if not _is_local(request):
            return Grant("none", address, NOT_LOCAL)
        if not isinstance(access, SecretLink):
            return Grant(access, address)
        if access.has_session(request):
            return Grant("act", address, has_session=True)
        return Grant("act", address) if access.has_token(request) else Grant("read", address, NEEDS_LINK)
    if inspect.iscoroutinefunction(access):
        level = await access(request)
    else:
        level = await to_thread.run_sync(access, request)  # it may read a database
        if inspect.isawaitable(level):
            level = await level
    if level not in get_args(Level):
        raise ArgumentInvalid("access", f"the function is to return 'none', 'read' or 'act', not {level!r:.60}")
    # The name that the application's authentication has put into the request.
    name = str(getattr(request.scope.get("user"), "display_name", "") or address_of(request))
    return Grant(level, name, "" if level != "none" else "this user may not look into the queues")


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine.

    The name in the header ``Host`` counts too: a page of another site can give its own name the address of this
    machine (DNS rebinding), and a proxy on this machine passes on requests of others.
    """
    name = request.headers.get("host", "").lower()
    name = name if name.endswith("]") else name.rsplit(":", 1)[0]
    if name not in LOCAL_NAMES or any(header in request.headers for header in PROXY_HEADERS):
        return False
    try:
        return ip_address(address_of(request)).is_loopback
    except ValueError:
        return False


def address_of(request: Request) -> str:
    """Return the address of a caller; empty if the server does not say it."""
    return "" if request.client is None else request.client.host
