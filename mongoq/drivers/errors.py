"""Errors of a server as operations and users see them: a missing right, a server that is no primary, and what to do."""

from __future__ import annotations

import math
import re
import time
import traceback
from typing import Any, NoReturn

from pymongo.errors import (
    BulkWriteError,
    ClientBulkWriteException,
    DuplicateKeyError,
    NotPrimaryError,
    OperationFailure,
)

from mongoq.core.base.bootstrap import UNAUTHORIZED_CODE
from mongoq.core.command import ReplyLost
from mongoq.data.clock import Clock, ServerClock
from mongoq.drivers.backend import DUPLICATE_CODE, Backend, classify_error, decode_details, find_primary, is_outage

__all__ = [
    "LOGIN_REFUSED_CODES",
    "UNAUTHORIZED_CODE",
    "FailoverNotice",
    "as_duplicate",
    "describe_missing_right",
    "describe_refused_user",
    "is_refused_user",
]

LOGIN_REFUSED_CODES = frozenset({11, 17, 18, 334, 8000})
"""What a server answers to credentials that it does not take, or to a mechanism that it does not have."""
REFUSED_BY_VALIDATOR_CODE = 121
"""What a server answers to a document that a validator of its collection refuses."""
VALIDATOR_ADVICE = "a validator of the collection refuses what mongoq writes: take it away by collMod, validator: {}"
READ_COMMANDS = frozenset({"find", "aggregate", "count", "getMore", "listIndexes", "collStats", "killCursors"})
"""Commands whose actions the role ``read`` holds."""
WRITE_COMMANDS = frozenset({"insert", "update", "delete", "findAndModify"})
"""Commands whose actions the role ``readWrite`` holds."""
SETUP_COMMANDS = frozenset({"listCollections", "createIndexes"})
"""Commands that only the first broker of a collection needs: a refusal means that no worker has started there."""
CLUSTER_COMMANDS = frozenset({"getParameter", "replSetGetConfig", "serverStatus"})
"""Commands whose actions no role on a database holds, but the role ``clusterMonitor``."""
ACTIONS = {
    "aggregate": "find",
    "count": "find",
    "explain": "find",
    "getMore": "find",
    "delete": "remove",
    "findAndModify": "update",
    "createIndexes": "createIndex",
    "drop": "dropCollection",
}
"""The server's names of the actions that commands need, where they differ from those of the commands."""
ROLES_ADVICE = "'mongoq role producer|worker|viewer' prints roles with no more than they need"
ADVICE_SEPARATOR = "; mongoq: "
NOT_AUTHORIZED_PATTERN = re.compile(r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]*)")?')


def is_refused_user(error: BaseException) -> bool:
    """Return whether the server refuses the user, or what the user wants to do."""
    return isinstance(error, OperationFailure) and error.code in LOGIN_REFUSED_CODES | {UNAUTHORIZED_CODE}


def describe_refused_user(error: Exception) -> str:
    """Return what a server refuses, in a sentence that goes on from its name, and what to do."""
    if getattr(error, "code", None) in LOGIN_REFUSED_CODES:
        return "refused the user: check user, password, authSource and authMechanism in the URI"
    return describe_missing_right(error)


def describe_missing_right(error: Exception) -> str:
    """Return what a server refuses, in a sentence that goes on from its name, and what to grant."""
    refusal = NOT_AUTHORIZED_PATTERN.search(str(error))
    if refusal is None:
        return "demands that its clients log in: give user and password (mongodb://user:password@host) in the URI"
    database, command, collection = refusal.groups()
    place = f"{database}.{collection}" if collection else database
    actions = _find_actions(command, str(error))
    what = f"the action{'s' if len(actions) > 1 else ''} {' and '.join(map(repr, actions))}"
    refused = f"knows the user, who may not run {command!r} on {place}"
    if command in SETUP_COMMANDS:
        return (
            f"{refused}, and mongoq's indexes are not there yet: start a worker first, or call broker.ensure_indexes() "
            f"as an administrator; for a worker, grant {what} on {place}: 'mongoq role worker' prints its role"
        )
    knows = f"{refused}: grant"
    if command in CLUSTER_COMMANDS:
        return f"{knows} {what} on the cluster, or the role 'clusterMonitor' on the database 'admin'"
    if command in READ_COMMANDS:
        roles = "" if command == "collStats" else f"; {ROLES_ADVICE}"  # none of mongoq's roles has it
        return f"{knows} {what} on {place}, or the role 'read' on the database {database!r}{roles}"
    if command in WRITE_COMMANDS:
        # The refusal of an update does not say whether it is an upsert.
        upsert = "; an update that may add a document needs 'insert' too" if command == "update" else ""
        return (
            f"{knows} {what} on {place}, or the role 'readWrite' on the database {database!r}{upsert}; {ROLES_ADVICE}"
        )
    return f"{knows} {what} on {place}"


def _find_actions(command: str, refusal: str) -> tuple[str, ...]:
    """Return the actions that a refused command needs, by its name and options."""
    if command == "findAndModify" and ", remove: true, " in refusal:
        return ("remove",)
    if command == "findAndModify" and ", upsert: true, " in refusal:
        return "update", "insert"
    if command == "aggregate" and "$changeStream: {" in refusal:
        return "changeStream", "find"
    return (ACTIONS.get(command, command),)


def advise(error: Exception, client: Any) -> None:
    """Add to an error's words what to do: to a refusal for want of a right, or of a server that is not the primary.

    Its type, code and details stay as they are.
    """
    if isinstance(error, NotPrimaryError):
        if client.topology_description.topology_type_name == "Single":
            _add(error, f"this server {_describe_primary(client)}")
    elif isinstance(error, OperationFailure) and error.code == UNAUTHORIZED_CODE:
        _add(error, f"the server {describe_missing_right(error)}")
    elif getattr(error, "code", None) == REFUSED_BY_VALIDATOR_CODE:
        _add(error, VALIDATOR_ADVICE)
    elif isinstance(error, BulkWriteError):
        for refused in error.details.get("writeErrors", ()):
            if refused.get("code") == REFUSED_BY_VALIDATOR_CODE:
                refused["errmsg"] += ADVICE_SEPARATOR + VALIDATOR_ADVICE


def _add(error: Exception, advice: str) -> None:
    message, *others = error.args or ("",)
    if ADVICE_SEPARATOR not in message:
        error.args = (f"{message}{ADVICE_SEPARATOR}{advice}", *others)


def _describe_primary(client: Any) -> str:
    servers = client.topology_description.server_descriptions().values()
    primary = next((f", now {host}:{port}" for host, port in filter(None, (each.primary for each in servers))), "")
    name = next((each.replica_set_name for each in servers if each.replica_set_name), "…")
    return (
        f"is not the primary of its replica set, which alone takes writes{primary}; leave directConnection=true out of "
        f"the URI and name the set: replicaSet={name}"
    )


def as_duplicate(error: Any) -> object:
    """Return the ``DuplicateKeyError`` of a bulk that has written everything but duplicates; any other error as it is.

    An ordered bulk stops at its first error, so it says nothing of the writes behind it.
    """
    if not issubclass(type(error), BulkWriteError | ClientBulkWriteException):  # isinstance asks the error itself
        return error
    details = error.details
    refused: Any = details.get("writeErrors") or ()
    is_unsure = not refused or details.get("writeConcernErrors") or details.get("error")
    if is_unsure or any(failure["code"] != DUPLICATE_CODE for failure in refused):
        return error
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # Only the argument of the call that raised it tells whether the bulk may have stopped at an error.
        if frame.f_code.co_name in ("insert_many", "bulk_write") and frame.f_locals.get("ordered") is False:
            return DuplicateKeyError(refused[0]["errmsg"], DUPLICATE_CODE, refused[0])
    return error


CHECK_INTERVAL_SECONDS = 0.05
"""Seconds between two checks of the topology: a failover takes longer."""


class FailoverNotice:
    """Watches the client's own view of the topology; costs next to nothing per command.

    Attributes:
        next_check: when, on the monotonic clock, to call ``check_topology`` again; a caller looks before each command.
        last_outage: monotonic time and type of the latest error by which no server answered; ``None`` without one.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._client = backend.client
        self._clock = clock if isinstance(clock, ServerClock) and backend.client is not None else None
        self._topology: Any = None
        self.next_check = 0.0 if self._clock is not None else math.inf
        self._primary: Any = None
        self.last_outage: tuple[float, str] | None = None

    def check_topology(self) -> None:
        """Disturb the clock if the primary has changed since the last check."""
        if self._clock is None:
            return
        self.next_check = time.monotonic() + CHECK_INTERVAL_SECONDS
        topology = self._client.topology_description
        if topology is self._topology:
            return
        self._topology = topology
        leader = find_primary(self._client)
        if self._primary not in (None, leader):
            self._clock.disturb()
        self._primary = leader or self._primary

    def reraise(self, error: Exception) -> NoReturn:
        """Raise a driver error in the form for operations; a network error disturbs the clock.

        The refusal for a missing right, or of a server that is not the primary, gets a note with advice.
        """
        error = decode_details(error)
        advise(error, self._client)
        converted = classify_error(error)
        if is_outage(error):
            self.last_outage = time.monotonic(), type(error).__name__
        if isinstance(converted, ReplyLost) and self._clock is not None:
            self._clock.disturb()
        raise converted or error
