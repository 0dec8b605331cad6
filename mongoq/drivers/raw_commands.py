"""Raw commands: writes sent as command documents, without the driver's layer for retryable writes.

For a retry the server keeps a record of each write, in a write of its own. A flow that resolves a lost reply by itself
needs no record: with it a lone ``reserve`` takes 15 % longer, and a ``push_many`` under given ids 12 %. Other writes go
by the driver's methods, which send them again once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo.errors import BulkWriteError, DuplicateKeyError, WriteConcernError, WriteError

from mongoq.protocol.flow import Command

DUPLICATE_CODE = 11000
MAJORITY = {"w": "majority"}
COUNT_FIELDS = {"bulk_write": "nMatched", "insert_many": "nInserted"}
"""Field of ``BulkWriteError`` with the number of statements that happened, unless they are deletes."""


class Outcome(NamedTuple):
    """Result of an update or a delete, with the driver's own names; no flow reads the result of an insert."""

    matched_count: int
    deleted_count: int


def is_raw_command(command: Command[Any]) -> bool:
    """Return whether a command can be sent raw; a bulk of updates and deletes is two commands, left to the driver."""
    if not command.resolved or command.session is not None:
        return False
    if command.method != "bulk_write":
        return True
    kinds = {kind[:6] for kind, _ in command.arguments["requests"]}
    return len(kinds) == 1


def build_command(command: Command[Any], collection: str) -> dict[str, Any]:
    """Return the command document for the server."""
    return _BUILDERS[command.method](collection, command.arguments)


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
    if command.method in COUNT_FIELDS:
        counts = {COUNT_FIELDS[command.method] if not _is_delete(command) else "nRemoved": reply["n"]}
        concerns = [unconfirmed] if unconfirmed else []
        return BulkWriteError({"writeErrors": refused, "writeConcernErrors": concerns, **counts})
    if unconfirmed:
        return WriteConcernError(unconfirmed["errmsg"], unconfirmed["code"], unconfirmed)
    first = refused[0]
    kind = DuplicateKeyError if first["code"] == DUPLICATE_CODE else WriteError
    return kind(first["errmsg"], first["code"], first)


def _insert(collection: str, documents: Sequence[Any], *, ordered: bool = True) -> dict[str, Any]:
    """Return an insert. Its documents do not count among the 16 MiB of a command: the driver sends them behind it."""
    return {"insert": collection, "ordered": ordered, "writeConcern": MAJORITY, "documents": documents}


def _update(collection: str, statements: Sequence[Mapping[str, Any]], *, ordered: bool = True) -> dict[str, Any]:
    return {"update": collection, "ordered": ordered, "writeConcern": MAJORITY, "updates": statements}


def _delete(collection: str, statements: Sequence[Mapping[str, Any]], *, ordered: bool = True) -> dict[str, Any]:
    return {"delete": collection, "ordered": ordered, "writeConcern": MAJORITY, "deletes": statements}


def _update_statement(arguments: Mapping[str, Any], *, multi: bool) -> dict[str, Any]:
    return {"q": arguments["filter"], "u": arguments["update"], "multi": multi}


def _delete_statement(arguments: Mapping[str, Any], *, multi: bool) -> dict[str, Any]:
    return {"q": arguments["filter"], "limit": 0 if multi else 1}


def _bulk(collection: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    requests = arguments["requests"]
    if requests[0][0].startswith("Delete"):
        deletes = [_delete_statement(each, multi=kind == "DeleteMany") for kind, each in requests]
        return _delete(collection, deletes, ordered=arguments["ordered"])
    updates = [_update_statement(each, multi=kind == "UpdateMany") for kind, each in requests]
    return _update(collection, updates, ordered=arguments["ordered"])


def _find_and_modify(collection: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    command: dict[str, Any] = {"findAndModify": collection, "query": arguments["filter"], "writeConcern": MAJORITY}
    if "sort" in arguments:
        command["sort"] = dict(arguments["sort"])
    if "maxTimeMS" in arguments:
        command["maxTimeMS"] = arguments["maxTimeMS"]
    return command


def _find_and_update(collection: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {**_find_and_modify(collection, arguments), "update": arguments["update"], "new": False}


_BUILDERS: Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "update_one": lambda collection, arguments: _update(collection, [_update_statement(arguments, multi=False)]),
    "update_many": lambda collection, arguments: _update(collection, [_update_statement(arguments, multi=True)]),
    "delete_one": lambda collection, arguments: _delete(collection, [_delete_statement(arguments, multi=False)]),
    "delete_many": lambda collection, arguments: _delete(collection, [_delete_statement(arguments, multi=True)]),
    "find_one_and_update": _find_and_update,
    "insert_many": lambda collection, arguments: _insert(
        collection, arguments["documents"], ordered=arguments["ordered"]
    ),
    "bulk_write": _bulk,
}
