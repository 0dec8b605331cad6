"""Raw commands: writes sent as command documents, without the driver's layer for retryable writes.

For a retry the server keeps a record of each write, in a write of its own. A flow that resolves a lost reply by itself
needs no record: with it a lone ``reserve`` takes 15 % longer, and a ``push_many`` under given ids 12 %. Other writes go
by the driver's methods, which send them again once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pymongo.errors import BulkWriteError, DuplicateKeyError, WriteConcernError, WriteError

from mongoq.protocol.flow import Command

DUPLICATE_CODE = 11000
MAJORITY = {"w": "majority"}
KINDS = {
    "update_one": "UpdateOne",
    "update_many": "UpdateMany",
    "delete_one": "DeleteOne",
    "delete_many": "DeleteMany",
}
"""The driver's names of the statements that methods send."""


class Outcome(NamedTuple):
    """Result of an update or a delete, with the driver's own names; no flow reads the result of an insert."""

    matched_count: int
    deleted_count: int


def is_raw_command(command: Command[Any]) -> bool:
    """Return whether a command can be sent raw; a bulk of updates and deletes is two commands, left to the driver."""
    if not command.resolved or command.session is not None:
        return False
    return command.method != "bulk_write" or len({kind[:6] for kind, _ in command.arguments["requests"]}) == 1


def build_command(command: Command[Any], collection: str) -> dict[str, Any]:
    """Return the command document for the server."""
    method, arguments = command.method, command.arguments
    if method == "find_one_and_update":
        found: dict[str, Any] = {"findAndModify": collection, "query": arguments["filter"], "writeConcern": MAJORITY}
        if "sort" in arguments:
            found["sort"] = dict(arguments["sort"])
        if "maxTimeMS" in arguments:
            found["maxTimeMS"] = arguments["maxTimeMS"]
        return {**found, "update": arguments["update"], "new": False}
    options = {"ordered": arguments.get("ordered", True), "writeConcern": MAJORITY}
    if method == "insert_many":
        # The documents do not count among the 16 MiB of a command: the driver sends them behind it.
        return {"insert": collection, **options, "documents": arguments["documents"]}
    statements = arguments["requests"] if method == "bulk_write" else [(KINDS[method], arguments)]
    if _is_delete(command):
        deletes = [{"q": each["filter"], "limit": 0 if kind == "DeleteMany" else 1} for kind, each in statements]
        return {"delete": collection, **options, "deletes": deletes}
    updates = [{"q": each["filter"], "u": each["update"], "multi": kind == "UpdateMany"} for kind, each in statements]
    return {"update": collection, **options, "updates": updates}


def parse_reply(command: Command[Any], reply: Mapping[str, Any]) -> Any:
    """Return the result that the driver's method returns, or raise its error."""
    if "writeErrors" in reply or "writeConcernError" in reply:
        raise _make_error(command, reply)
    if command.method.startswith("find"):
        return reply["value"]
    if command.method.startswith("insert"):
        return None
    return Outcome(0, reply["n"]) if _is_delete(command) else Outcome(reply["n"], 0)


def _is_delete(command: Command[Any]) -> bool:
    if command.method == "bulk_write":
        return bool(command.arguments["requests"][0][0].startswith("Delete"))
    return command.method.startswith("delete")


def _make_error(command: Command[Any], reply: Mapping[str, Any]) -> Exception:
    refused, unconfirmed = reply.get("writeErrors", []), reply.get("writeConcernError")
    if command.method in ("bulk_write", "insert_many"):
        name = "nInserted" if command.method == "insert_many" else "nRemoved" if _is_delete(command) else "nMatched"
        concerns = [unconfirmed] if unconfirmed else []
        return BulkWriteError({"writeErrors": refused, "writeConcernErrors": concerns, name: reply["n"]})
    if unconfirmed:
        return WriteConcernError(unconfirmed["errmsg"], unconfirmed["code"], unconfirmed)
    first = refused[0]
    kind = DuplicateKeyError if first["code"] == DUPLICATE_CODE else WriteError
    return kind(first["errmsg"], first["code"], first)
