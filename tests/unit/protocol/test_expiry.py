"""What the decision about items that must be started in time sends, and what it makes of each answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId

from mongoq.model.item import Item
from mongoq.model.sequence import control_id
from mongoq.model.trail import StageMark
from mongoq.protocol.claim.expiry import settle_expired_head, start_or_expire
from mongoq.protocol.flow import Command, Refused
from tests.unit.scripted import ID, LOST, NOW, TOKEN, context, found, matched, play, reserved_item

SECOND = timedelta(seconds=1)
OTHER = ObjectId()
ONE_FOUND = SimpleNamespace(matched_count=1, deleted_count=0)
BACK: Command[Any] = Command("update_one", {})


def decide(queue: Any, items: list[Item[Any]], *replies: Any) -> Any:
    return play(start_or_expire(queue, items, TOKEN, lambda: BACK), replies)


def test_items_without_a_time_cost_no_command() -> None:
    items = [reserved_item(), reserved_item(_id=OTHER)]
    assert decide(context(), items) == ([], items)


@pytest.mark.parametrize("start_by", [None, "tomorrow", 5, {"$lt": 1}], ids=repr)
def test_a_time_of_another_type_never_expires(start_by: Any) -> None:
    items = [reserved_item(start_by=start_by)]
    commands, starting = decide(context(), items, *([] if start_by is None else [matched(1)]))
    assert starting == items
    assert len(commands) == (start_by is not None)


def test_items_that_start_lose_their_time_under_the_token_in_one_command() -> None:
    items = [reserved_item(start_by=NOW + SECOND), reserved_item(_id=OTHER, start_by=NOW + SECOND)]
    (command,), starting = decide(context(), items, matched(2))
    assert starting == items
    assert command.method == "update_many"
    assert command.arguments == {
        "filter": {"_id": {"$in": [ID, OTHER]}, "token": TOKEN},
        "update": {"$unset": {"start_by": ""}},
    }
    assert command.undo is not None
    assert command.undo(None) is BACK, "a caller that is cancelled meanwhile gives the items back"


def test_a_lost_reply_is_asked_for_again() -> None:
    items = [reserved_item(start_by=NOW + SECOND)]
    commands, starting = decide(context(), items, LOST, matched(1))
    assert (len(commands), starting) == (2, items)


def test_an_item_that_another_caller_has_by_now_is_not_handed_out() -> None:
    kept, lost = reserved_item(start_by=NOW + SECOND), reserved_item(_id=OTHER, start_by=NOW + SECOND)
    commands, starting = decide(context(), [kept, lost], matched(1), found({"_id": ID}))
    assert starting == [kept]
    assert len(commands) == 2


def test_expired_items_are_settled_under_the_token_and_those_behind_them_without_one() -> None:
    queue = context(history=60)
    late, starting = reserved_item(start_by=NOW), reserved_item(_id=OTHER)
    behind = {"_id": ObjectId(), "q": "orders", "when": NOW, "attempts": 0, "priority": 0, "start_by": NOW}
    ahead = {**behind, "_id": ObjectId(), "start_by": NOW + SECOND}
    commands, handed_out = decide(queue, [late, starting], ONE_FOUND, found(behind, ahead), ONE_FOUND)
    assert handed_out == [starting]
    settled, read, swept = commands
    [(kind, statement)] = settled.arguments["requests"]
    assert (kind, statement["filter"]) == ("UpdateOne", {"_id": ID, "token": TOKEN})
    assert statement["update"]["$inc"] == {"attempts": -1}
    assert "1000" in repr(read.arguments)
    [(kind, statement)] = swept.arguments["requests"]
    assert (kind, statement["filter"]) == (
        "UpdateMany",
        {"_id": {"$in": [behind["_id"]]}, "q": "orders", "when": {"$lte": NOW}, "start_by": {"$lte": NOW}},
    )
    assert "$inc" not in statement["update"], "no claim has counted an attempt"
    assert statement["update"]["$set"]["by"], "a process that has read it ahead learns that it was taken"
    assert queue.broker.counters.take()["orders"] == {"expired": 2}


def test_without_history_the_items_at_the_head_are_deleted() -> None:
    behind = {"_id": ID, "q": "orders", "when": NOW, "attempts": 0, "priority": 0, "start_by": NOW}
    (_, swept), number = play(settle_expired_head(context()), [found(behind), ONE_FOUND])
    [(kind, statement)] = swept.arguments["requests"]
    assert (kind, number) == ("DeleteMany", 1)
    assert statement["filter"]["start_by"] == {"$lte": NOW}


def test_a_head_without_expired_items_is_left_as_it_is() -> None:
    item = {"_id": ID, "q": "orders", "when": NOW, "attempts": 0, "priority": 0, "start_by": NOW + SECOND}
    commands, number = play(settle_expired_head(context()), [found(item)])
    assert (len(commands), number) == (1, 0)


def test_claimed_items_go_back_if_the_expired_ones_beside_them_cannot_be_settled() -> None:
    late, starting = reserved_item(start_by=NOW), reserved_item(_id=OTHER, start_by=NOW + SECOND)
    broken = RuntimeError("the server is gone")
    commands, error = decide(context(), [late, starting], broken, matched(1))
    assert error is not None
    assert commands[-1] is BACK
    assert len(commands) == 2, "the other item still has its time"


def test_a_trail_of_another_program_does_not_keep_expired_items_where_they_are() -> None:
    queue = context(on_expired="dead")
    queue = replace(queue, stage=StageMark("stage", trail=True))
    behind = {
        "_id": ID,
        "q": "orders",
        "when": NOW,
        "attempts": 0,
        "priority": 0,
        "start_by": NOW,
    }  # its trail is not read
    refused = Refused(RuntimeError("must be an array"))
    commands, number = play(settle_expired_head(queue), [found(behind), refused, found(behind), ONE_FOUND])
    assert number == 1
    assert "$push" in commands[1].arguments["requests"][0][1]["update"]
    assert "$push" not in commands[3].arguments["requests"][0][1]["update"]


def placed(**changes: Any) -> dict[str, Any]:
    head = {"_id": ID, "q": "orders", "attempts": 0, "priority": 0, "start_by": NOW, "sequence": "a", "place": 0}
    return {**head, **changes}


def test_heads_of_sequences_are_settled_if_they_still_are_expired_with_those_behind_them() -> None:
    queue = context(serverless=True)
    started, last = ObjectId(), ObjectId()
    heads = [placed(when=NOW), placed(_id=started, when=NOW, sequence="b")]
    behind = [placed(_id=OTHER, ready_from=NOW, place=1), placed(_id=last, ready_from=NOW, place=2, start_by=None)]
    follows = {"_id": last, "ready_from": NOW, "priority": 0, "place": 2}
    control = {"_id": control_id("orders", "a"), "next": 3, "open": 1}
    replies: list[Any] = [heads, [{"_id": ID}], behind, matched(2), [follows], [control], matched(1), []]
    commands, number = play(settle_expired_head(queue), replies)
    assert number == 2
    settled = commands[3]
    assert (settled.method, settled.arguments["filter"]) == ("delete_many", {"_id": {"$in": [ID, OTHER]}})
    assert commands[6].arguments["filter"]["_id"] == {"$in": [last]}
    assert commands[6].arguments["update"]["$set"]["when"] == NOW
    assert len(commands) == 8, "what follows may have expired too, so the head is read again"
