"""The trail: every turn that any item took, in order, as the server's change stream tells it.

What is stored in the end shows the last turn of each item. The change stream shows them all, a double one as well whose
traces the next has wiped out, and it shows those alone that a majority has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from bson import ObjectId

from tests.crash.stations import FIRST, SECOND

__all__ = ["Turn", "begin", "read", "turn_of"]

RUN = re.compile("run ([0-9a-f]{24})")
END = "end of the trail "
OPERATIONS = ["insert", "update", "replace", "delete"]

Kind = Literal["pushed", "reserved", "moved", "committed", "buried", "handed back", "removed"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What was done to an item by one command.

    Attributes:
        item: its id.
        kind: what was done.
        token: under which reservation it was done, or for ``reserved`` the new one; ``None`` where nothing tells.
        error: the type of the error that was given as the reason, if one was.
        at: when, on the server's clock.
    """

    item: ObjectId
    kind: Kind
    token: ObjectId | None = None
    error: str = ""
    at: datetime | None = None


def begin(collection: Any) -> Mapping[str, Any]:
    """Return the place in the stream where the trail begins: now."""
    with collection.watch() as stream:
        return dict(stream.resume_token)


def read(collection: Any, start: Mapping[str, Any]) -> Iterator[Turn]:
    """Read the trail from its beginning up to now."""
    fields = {"operationType": 1, "documentKey": 1, "updateDescription": 1, "wallTime": 1}
    pipeline = [{"$match": {"operationType": {"$in": OPERATIONS}}}, {"$project": fields}]
    with collection.watch(pipeline, resume_after=start, batch_size=10_000) as stream:
        end = f"{END}{ObjectId()}"  # each reading has its own
        collection.insert_one({"_id": end})
        for change in stream:
            if change["documentKey"]["_id"] == end:
                return
            turn = turn_of(change)
            if turn is not None:
                yield replace(turn, at=change["wallTime"])


def turn_of(change: Mapping[str, Any]) -> Turn | None:
    """Return the turn that an event tells of; ``None`` for a longer lease, and for what is no item."""
    id = change["documentKey"]["_id"]
    if not isinstance(id, ObjectId):
        return None
    match change["operationType"]:
        case "insert":
            return Turn(id, "pushed")
        case "update":
            description = change["updateDescription"]
            return _updated(id, description["updatedFields"], description["removedFields"])
        case _:
            return Turn(id, "removed")


def _updated(id: ObjectId, fields: Mapping[str, Any], removed: list[str]) -> Turn | None:
    if "token" in fields:
        return Turn(id, "reserved", fields["token"])
    if "processed" in fields:
        return Turn(id, "committed", fields["settled"])
    if fields.get("q") in (FIRST, SECOND):
        return Turn(id, "moved", fields.get("payload.mover"))
    details = (_named(fields), fields.get("error", {}).get("type", ""))
    if "q" in fields:
        return Turn(id, "buried", *details)
    return Turn(id, "handed back", *details) if "token" in removed else None


def _named(fields: Mapping[str, Any]) -> ObjectId | None:
    """Return the token that a handler has written into the error or the reason."""
    texts = (fields.get("origin", {}).get("reason"), fields.get("error", {}).get("message"))
    tokens = [match[1] for match in (RUN.search(text or "") for text in texts) if match]
    return ObjectId(tokens[0]) if tokens else None
