"""Many items looked at together are seen as each of them would be by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.model.item import Item
from mongoq.model.raw import RawBatch, all_held, ids_of, one_due, remembers
from tests.unit.scripted import NOW, reserved_item

LEASE = NOW + timedelta(seconds=30)
SOON = NOW + timedelta(seconds=1)


COMMON = [
    ("all", [{}, {}], True, LEASE),
    ("held by several tokens", [{}, {"token": ObjectId(b"another one.")}], False, LEASE),
    ("until the first lease ends", [{}, {"when": SOON}, {}], True, SOON),
]


@pytest.mark.parametrize("case", COMMON, ids=lambda case: case[0])
def test_what_items_have_in_common(case: Any) -> None:
    _, changes, together, until = case
    items = [reserved_item(_id=ObjectId(), **each) for each in changes]
    assert all_held(items, "app.mongoq", "orders") == RawBatch(together, until, ids_of(items))


@pytest.mark.parametrize(
    "change", [{"q": "others"}, {"token": None}, {"token": "text"}, {"_id": "text"}, {"reserved": False}, {"when": "x"}]
)
def test_what_needs_a_closer_look(change: dict[str, Any]) -> None:
    items = [reserved_item(_id=ObjectId()), reserved_item(**change), reserved_item(_id=ObjectId())]
    assert all_held(items, "app.mongoq", "orders") is None


def test_what_is_no_item_or_is_there_twice_or_elsewhere_needs_a_closer_look() -> None:
    item = reserved_item()

    class Own(Item[Any]):
        __slots__ = ()

    for items in ([], [item, None], [item, item], [item, Own({}, None, NOW, "app.mongoq")]):
        assert all_held(items, "app.mongoq", "orders") is None
    assert all_held([item], "other.mongoq", "orders") is None
    bare = Item({"_id": ObjectId(), "q": "orders", "token": ObjectId()}, None, NOW, "app.mongoq")
    assert all_held([item, bare], "app.mongoq", "orders") is None


def test_ids_are_in_order() -> None:
    items = [reserved_item(_id=ObjectId()) for _ in range(3)]
    assert ids_of(items) == [item.id for item in items]


def test_items_that_were_due_at_one_time() -> None:
    assert one_due([reserved_item(due=NOW), reserved_item(due=NOW + timedelta(0))])
    assert not one_due([reserved_item(due=NOW), reserved_item(due=SOON)])
    assert not one_due([reserved_item(due=None), reserved_item(due=None)])
    assert not one_due([reserved_item(due=NOW), reserved_item(due=None)])


def test_whether_an_id_is_remembered() -> None:
    assert remembers([reserved_item(), reserved_item(once=LEASE)])
    assert not remembers([reserved_item(), reserved_item()])
