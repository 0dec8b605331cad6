"""What a stage leaves on items, as far as that needs no server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId

from mongoq.model.item import Item
from mongoq.model.trail import LARGE_PAYLOAD_BYTES, StageMark, trail_of
from mongoq.protocol.settle.trail import NO_MARKS, Marker
from tests.unit.scripted import NOW, context, reserved_item

ENTRY = {"queue": "orders", "stage": "load", "taken": NOW, "settled": NOW, "attempts": 1, "ended": "moved"}
HUGE = bytes(LARGE_PAYLOAD_BYTES + 1)


def marker(ended: Any = "moved", mark: StageMark | None = None) -> Marker:
    queue = context()
    queue.stage = mark
    return Marker(queue, ended, at=NOW, to="next")


RECORDS = StageMark("load", trail=True)
KEEPS = StageMark("load", trail=True, payloads=True)


def test_items_that_are_left_alike_share_what_is_left() -> None:
    marks = marker(mark=RECORDS)
    shared = marks.marks(reserved_item())
    assert marks.marks(reserved_item(_id=ObjectId())) is shared
    for different in (reserved_item(attempts=2), reserved_item(by="host:2:bb"), reserved_item(hops="x")):
        assert marks.marks(different) is not shared
    later = Item({**_document(), "hops": 3}, None, NOW + timedelta(seconds=1), "app.mongoq")
    assert marks.marks(later) is not shared
    own = marker(mark=KEEPS)
    assert own.marks(reserved_item()) is not own.marks(reserved_item())


def _document() -> dict[str, Any]:
    return {"_id": ObjectId(), "q": "orders", "attempts": 1, "by": "host:1:aa", "payload": 1}


def test_a_handle_of_no_stage_leaves_nothing_and_makes_room_all_the_same() -> None:
    trail = [{**ENTRY, "payload": 1}, "foreign", ENTRY]
    plain = marker()
    assert plain.marks(reserved_item(trail=trail)) is NO_MARKS
    assert plain.marks(reserved_item(trail=[ENTRY]), payload=HUGE) is NO_MARKS
    assert plain.marks(reserved_item(trail="text"), payload=HUGE) is NO_MARKS
    for grown in ({"payload": HUGE}, {"added": LARGE_PAYLOAD_BYTES}):
        lighter = plain.marks(reserved_item(trail=trail), **grown)  # type: ignore[arg-type]
        assert lighter.changes == {"trail": [{**ENTRY, "large": True}, "foreign", ENTRY]}
        assert not lighter.operators


@pytest.mark.parametrize("grown", [{"payload": HUGE}, {"added": LARGE_PAYLOAD_BYTES}])
def test_a_payload_is_not_kept_beside_one_that_fills_the_item(grown: Any) -> None:
    (entry,) = marker(mark=KEEPS).marks(reserved_item(), **grown).operators["$push"]["trail"]["$each"]
    assert (entry["large"], "payload" in entry) == (True, False)


def test_an_item_that_was_settled_unseen_has_an_entry_without_payload() -> None:
    document = _document()
    del document["payload"]
    marks = marker(mark=KEEPS).marks(Item(document, None, NOW, "app.mongoq"))
    (hop,) = trail_of([dict(entry) for entry in marks.operators["$push"]["trail"]["$each"]])
    assert (hop.kept, hop.large) == (False, False)


def test_marks_know_how_large_they_are() -> None:
    item = reserved_item(payload={"b": b"x" * 5_000})
    marks = marker(mark=KEEPS).marks(item)
    (entry,) = marks.operators["$push"]["trail"]["$each"]
    assert marks.size == len(bson.encode(dict(entry))) > 5_000


def test_a_payload_that_cannot_be_encoded_again_stops_nothing() -> None:
    """A codec of the caller's own may decode into what it does not encode."""
    marks = marker(mark=KEEPS).marks(reserved_item(payload=object()))
    (entry,) = marks.operators["$push"]["trail"]["$each"]
    assert (entry["large"], "payload" in entry) == (True, False)
