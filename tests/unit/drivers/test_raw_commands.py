"""Commands that are sent without the driver's retry: how they are spelled, and what their replies mean."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import BulkWriteError, DuplicateKeyError, WriteConcernError, WriteError

from mongoq.drivers import raw_commands
from mongoq.protocol.flow import Command

ID, TOKEN = ObjectId(), ObjectId()
FENCE = {"_id": ID, "token": TOKEN}
LATER = {"$set": {"when": 1}}
ONE: dict[str, Any] = {"filter": FENCE, "update": LATER}
UPDATE = {"q": FENCE, "u": LATER, "multi": False}
MAJORITY = {"w": "majority"}


def command(method: str, arguments: Any, **options: Any) -> Command[Any]:
    return Command(method, arguments, resolved=True, **options)


def bulk(*requests: tuple[str, Any]) -> Command[Any]:
    return command("bulk_write", {"requests": list(requests), "ordered": False})


SPELLINGS = [
    (command("update_one", ONE), {"update": "c", "updates": [UPDATE], "ordered": True}),
    (command("update_many", ONE), {"update": "c", "updates": [{**UPDATE, "multi": True}], "ordered": True}),
    (command("delete_one", {"filter": FENCE}), {"delete": "c", "deletes": [{"q": FENCE, "limit": 1}], "ordered": True}),
    (
        command("find_one_and_update", {**ONE, "sort": [("priority", 1), ("_id", 1)]}),
        {
            "findAndModify": "c",
            "query": FENCE,
            "sort": {"priority": 1, "_id": 1},
            "update": LATER,
            "new": False,
        },
    ),
    (
        bulk(("UpdateOne", ONE), ("UpdateMany", ONE)),
        {"update": "c", "updates": [UPDATE, {**UPDATE, "multi": True}], "ordered": False},
    ),
    (
        command("insert_many", {"documents": [{"_id": ID}], "ordered": False}),
        {"insert": "c", "documents": [{"_id": ID}], "ordered": False},
    ),
    (
        bulk(("DeleteMany", {"filter": FENCE}), ("DeleteOne", {"filter": FENCE})),
        {"delete": "c", "deletes": [{"q": FENCE, "limit": 0}, {"q": FENCE, "limit": 1}], "ordered": False},
    ),
]


@pytest.mark.parametrize(("operation", "expected"), SPELLINGS, ids=lambda value: getattr(value, "method", ""))
def test_a_command_is_what_the_driver_would_send(operation: Command[Any], expected: dict[str, Any]) -> None:
    assert raw_commands.is_raw_command(operation)
    document = raw_commands.build_command(operation, "c")
    assert document == {**expected, "writeConcern": MAJORITY}
    assert next(iter(document)) == next(iter(expected))


@pytest.mark.parametrize(
    "operation",
    [
        Command("update_one", ONE),
        command("update_one", ONE, session=object()),
        bulk(("UpdateOne", ONE), ("DeleteOne", {"filter": FENCE})),
    ],
    ids=["not resolved", "in a transaction", "both kinds"],
)
def test_what_the_driver_has_to_send_is_left_to_it(operation: Command[Any]) -> None:
    assert not raw_commands.is_raw_command(operation)


def test_replies_are_the_drivers_results() -> None:
    assert raw_commands.parse_reply(command("update_one", ONE), {"n": 1, "nModified": 0}) == (1, 0)
    assert raw_commands.parse_reply(command("delete_one", {"filter": FENCE}), {"n": 1}) == (0, 1)
    assert raw_commands.parse_reply(bulk(("DeleteMany", {"filter": FENCE})), {"n": 3}) == (0, 3)
    assert raw_commands.parse_reply(INSERT, {"n": 3}) is None
    assert raw_commands.parse_reply(command("find_one_and_update", ONE), {"value": {"a": 1}}) == {"a": 1}


INSERT = command("insert_many", {"documents": [{"_id": ID}], "ordered": False})
REFUSED = {"index": 0, "code": 28, "errmsg": "no such path"}
DUPLICATE = {"index": 1, "code": 11000, "errmsg": "dup key"}
UNCONFIRMED = {"code": 64, "errmsg": "waiting timed out"}


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ({"n": 0, "writeErrors": [REFUSED]}, WriteError),
        ({"n": 0, "writeErrors": [DUPLICATE]}, DuplicateKeyError),
        ({"n": 1, "writeConcernError": UNCONFIRMED}, WriteConcernError),
        ({"n": 0, "writeErrors": [REFUSED], "writeConcernError": UNCONFIRMED}, WriteConcernError),
    ],
)
def test_what_was_refused_or_not_confirmed_raises_as_the_driver_does(reply: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        raw_commands.parse_reply(command("update_one", ONE), reply)
    assert raised.type is error


def test_a_claim_that_was_not_confirmed_raises() -> None:
    with pytest.raises(WriteConcernError):
        raw_commands.parse_reply(
            command("find_one_and_update", ONE), {"value": {"a": 1}, "writeConcernError": UNCONFIRMED}
        )


def test_a_bulk_says_what_was_refused_and_how_many_were_not() -> None:
    with pytest.raises(BulkWriteError) as raised:
        raw_commands.parse_reply(
            bulk(("UpdateOne", ONE)), {"n": 7, "writeErrors": [REFUSED], "writeConcernError": UNCONFIRMED}
        )
    details = raised.value.details
    assert details["writeErrors"] == [REFUSED]
    assert details["writeConcernErrors"] == [UNCONFIRMED]
    assert details["nMatched"] == 7


def test_an_insert_of_many_says_what_was_refused_and_how_many_were_not() -> None:
    with pytest.raises(BulkWriteError) as raised:
        raw_commands.parse_reply(INSERT, {"n": 2, "writeErrors": [DUPLICATE]})
    assert raised.value.details == {"writeErrors": [DUPLICATE], "writeConcernErrors": [], "nInserted": 2}
